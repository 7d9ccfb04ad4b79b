from pages import Page, run_program


def test_the_programs_of_the_readme_run(tmp_path):
    run_program("".join(Page("libs/tensors/README.md").blocks("python")), tmp_path)
