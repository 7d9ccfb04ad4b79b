"""What docs/production.md says of other frameworks and of tools that install."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from pages import Page, run_program
from processes import run_process

INSTALLING = Page("docs/production.md", "uv, Poetry, conda")


@pytest.mark.slow
def test_django_answers_from_the_pipeline_of_its_process(tmp_path):
    pytest.importorskip("django")
    Page("docs/production.md", "Django").write(tmp_path)
    (tmp_path / "settings.py").write_text(
        "SECRET_KEY = 'x'\nALLOWED_HOSTS = ['*']\nROOT_URLCONF = 'urls'\n"
    )
    (tmp_path / "urls.py").write_text(
        "from django.urls import path\nfrom views import size\nurlpatterns = [path('size', size)]\n"
    )
    program = (
        "import views, sys\n"
        "assert 'wsgi' not in sys.modules\n"
        "import wsgi\n"
        "from django.test import Client\n"
        "print(Client().post('/size', b'four', content_type='text/plain').json())\n"
        "wsgi.pipe.close()\n"
    )
    assert run_program(program, tmp_path) == "{'size': 4}\n"


@pytest.mark.slow
def test_uv_locks_the_wheels_of_a_clone(wheels, tmp_path):
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or pytest.skip("needs uv")
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / "dist").symlink_to(wheels["headrace"].parent)
    project = '[project]\nname = "app"\nversion = "0"\nrequires-python = ">=3.10"\n'
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(project + INSTALLING.block("toml"))
    (wanted,) = re.findall(r'`uv add "(.*?)"`', INSTALLING.text)
    done = run_process(
        [uv, "add", "--no-sync", "--python", sys.executable, wanted],
        cwd=tmp_path / "app",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    locked = (tmp_path / "app" / "uv.lock").read_text("utf-8")
    assert {wheels[name].name for name in ("headrace", "headrace_serve")} <= set(
        re.findall(r"[\w.-]+\.whl", locked)
    )


@pytest.mark.slow
def test_the_wheels_that_the_page_names_are_those_that_dev_builds(wheels):
    assert set(re.findall(r"[\w.-]+\.whl", INSTALLING.text)) <= {
        path.name for path in wheels.values()
    }
    *_, pip = yaml.safe_load(INSTALLING.block("yaml"))["dependencies"]
    folder, wanted = pip["pip"]
    assert folder == "--find-links ../headrace/dist"
    assert Requirement(wanted).name in wheels
