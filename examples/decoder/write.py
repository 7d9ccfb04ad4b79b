"""Write several texts at a time: the first one is shown as it comes, character by character."""

from pathlib import Path

import headrace

PROMPTS = ["Beautiful is ", "Now is ", "If the impl", "Names", "Errors ", "There should"]

with headrace.pipe(Path(__file__).with_name("decoder.toml")) as pipe:
    others = [pipe.submit({"data": prompt}) for prompt in PROMPTS[1:]]
    *letters, last = pipe.stream({"data": PROMPTS[0]})
    print(f"{PROMPTS[0]}|{''.join(letters)}")
    for future in others:
        request = future.result()
        print(f"{request['data']}|{request['result']}")
    counted = pipe.stats()["iterate"]["write"]
    print(f"{counted['steps']} steps, {counted['in_flight']:.1f} texts in each")
