"""The rules that all engines keep."""

from engine_rules import EngineRules


class TestRules(EngineRules):
    def config(self, path, inputs):
        return {"backend": "OnnxTensor", "model": str(path)}
