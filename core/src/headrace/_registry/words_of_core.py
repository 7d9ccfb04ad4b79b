"""The words of core by name, with their import paths; made by `python scripts/words_of_core.py`."""

from __future__ import annotations

BACKENDS = {
    "Call": "headrace.words.call:Call",
    "Identity": "headrace.words.call:Identity",
    "Fallback": "headrace.words.choice:Fallback",
    "ModelLoader": "headrace.words.choice:ModelLoader",
    "DI": "headrace.words.composing:DI",
    "Aspect": "headrace.words.composing:DI",
    "BackgroundThread": "headrace.words.composing:BackgroundThread",
    "IoC": "headrace.words.composing:IoC",
    "S": "headrace.words.composing:Sequential",
    "Sequential": "headrace.words.composing:Sequential",
    "With": "headrace.words.composing:With",
    "CatSplit": "headrace.words.conditions:CatSplit",
    "HasKey": "headrace.words.conditions:HasKey",
    "NotHasKey": "headrace.words.conditions:NotHasKey",
    "Random": "headrace.words.conditions:Random",
    "DagDispatcher": "headrace.words.dag:DagDispatcher",
    "Loop": "headrace.words.dag:Loop",
    "Repost": "headrace.words.dag:Repost",
    "Restart": "headrace.words.dag:Restart",
    "Forward": "headrace.words.naming:Forward",
    "InstanceFromParam": "headrace.words.naming:InstanceFromParam",
    "Proxy": "headrace.words.naming:Proxy",
    "Reflect": "headrace.words.naming:Reflect",
    "Batching": "headrace.words.registering:Batching",
    "InstanceDispatcher": "headrace.words.registering:InstanceDispatcher",
    "InstancesRegister": "headrace.words.registering:InstancesRegister",
    "List": "headrace.words.registering:List",
    "Register": "headrace.words.registering:Register",
}
