import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pages import programs, run_program

import headrace_ort
from headrace_ort import OnnxTensor

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(code, **where):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, **where
    )


def test_the_module_with_the_backend_loads_no_heavy_library():
    code = (
        "import sys, headrace_ort; headrace_ort.OnnxTensor.Options;"
        "print(sorted({'onnxruntime', 'numpy'} & set(sys.modules)))"
    )
    done = run(code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_all_names_resolve_and_are_listed():
    assert sorted(headrace_ort.__all__) == headrace_ort.__all__ == dir(headrace_ort)
    for name in headrace_ort.__all__:
        assert getattr(headrace_ort, name) is not None
    assert not hasattr(headrace_ort, "nonsense")


@pytest.mark.first("run ONNX models: as the README shows it")
@pytest.mark.parametrize("program", programs("plugins/ort/README.md"))
def test_the_programs_of_the_readme_run(program, tmp_path):
    run_program(program, tmp_path)


def test_the_docstring_has_all_sections():
    for section in ("Reads", "Writes", "Batch", "Raises", "Source"):
        assert f"\n{section}:\n" in inspect.cleandoc(OnnxTensor.__doc__)
