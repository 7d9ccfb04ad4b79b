import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_programs_of_the_readme_run():
    program = "".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
