import pytest
from pages import Page, run_program

pytestmark = pytest.mark.first("requests become tensors and rows as the README shows it")


def test_the_programs_of_the_readme_run(tmp_path):
    run_program("".join(Page("libs/tensors/README.md").blocks("python")), tmp_path)
