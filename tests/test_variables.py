"""Which environment variables notebooks get: a list of what they need, and what is passed by name."""

import os

from tapelab.collection.running import variables

import pytest

KEPT = [
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("LD_LIBRARY_PATH", "TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL", "XLA_FLAGS", "KERAS_BACKEND", "KERAS_HOME"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OMP_PROC_BIND", "MKL_NUM_THREADS", "JUPYTER_PATH"),
    *("IPYTHONDIR", "MPLBACKEND", "MPLCONFIGDIR", "XDG_CACHE_HOME", "TAPELAB_PROGRESS", "SSL_CERT_FILE"),
]
WITHHELD = [
    *("DATABASE_URL", "MYSQL_PWD", "PGPASSFILE", "GH_PAT", "HTTPS_PROXY", "https_proxy", "SENTRY_DSN"),
    *("AZURE_STORAGE_CONNECTION_STRING", "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY", "HF_TOKEN", "SSH_AUTH_SOCK"),
    *("JUPYTER_TOKEN", "NVIDIA_API_KEY", "TF_API_TOKEN", "KERAS_SECRET", "TAPELAB_PASSWORD", "JPY_API_TOKEN"),
    *("CONDA_TOKEN", "KUBECONFIG", "SOMETHING_NEW"),
]


@pytest.fixture
def given(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name in [*KEPT, *WITHHELD]:
        monkeypatch.setenv(name, f"value of {name}")


def test_kernels_get_what_they_need_and_nothing_else(given, monkeypatch):
    monkeypatch.setattr(variables, "cores", lambda: 7)
    expected = {name: f"value of {name}" for name in KEPT} | dict.fromkeys(variables.THREADS, "3")
    assert variables.for_kernels(2) == expected


def test_what_is_passed_by_name_comes_along_whatever_its_name(given):
    found = variables.for_kernels(3, ["DATABASE_URL", "HTTPS_PROXY"])
    assert found["DATABASE_URL"] == "value of DATABASE_URL"
    assert found["HTTPS_PROXY"] == "value of HTTPS_PROXY"
    assert "https_proxy" not in found


def test_a_number_of_threads_that_is_passed_wins(given, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert variables.for_kernels(99)["OMP_NUM_THREADS"] == "1"
    assert variables.for_kernels(99, ["OMP_NUM_THREADS"])["OMP_NUM_THREADS"] == "7"


def test_a_variable_that_does_not_exist_cannot_be_passed(given):
    with pytest.raises(variables.UnsetVariableError, match="--pass-env NO_SUCH: there is no such variable"):
        variables.check(["PATH", "NO_SUCH"])
