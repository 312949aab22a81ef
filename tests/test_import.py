"""`import gamlens` needs torch, torchvision, numpy and Pillow, and brings in nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

OPTIONAL = (
    "timm",
    "typer",
    "rich",
    "skimage",
    "safetensors",
    "gradio",
    "scipy",
    "matplotlib",
    "transformers",
    "psutil",
)


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.slow
def test_import_loads_nothing_optional() -> None:
    """Nor does importing the studio, which loads gradio when it is started."""
    code = f"""
        import sys, torch, torchvision
        before = set(sys.modules)
        import gamlens, gamlens.studio
        new = {{name.split(".")[0] for name in set(sys.modules) - before}}
        print(sorted(new & set({OPTIONAL})), callable(gamlens.studio.launch))
    """
    assert run(code) == "[] True"


@pytest.mark.slow
def test_works_with_nothing_but_the_core() -> None:
    """With every optional package hidden, a model is explained, compared, saved and loaded.

    The command line, which needs typer, says what to install.
    """
    code = f"""
        import sys, tempfile
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {OPTIONAL}:
                    raise ModuleNotFoundError(f"hidden: {{name}}", name=name)
        sys.meta_path.insert(0, Hide())
        import torch, torchvision, gamlens
        torch.manual_seed(0)
        lens = gamlens.Lens(torchvision.models.resnet18())
        batch = torch.randn(2, 3, 64, 64)
        result = lens.classify(batch)
        pair = lens.compare(batch[:1], batch[1:])
        with tempfile.TemporaryDirectory() as folder:
            result.save(folder)
            same = gamlens.Explanation.load(folder)
        print(torch.equal(same.maps, result.maps), len(result.boxes(mode="largest")), pair.x.overlay().size)
        from gamlens.__main__ import main
        try:
            main()
        except SystemExit as stop:
            print(stop.code)
    """
    found, said = run(code).split("\n", 1)
    assert found == "True 2 (64, 64)"
    assert "pip install 'gamlens[cli]'" in said


def test_bench_and_adapters_are_loaded_when_used() -> None:
    code = """
        import sys, gamlens
        assert "gamlens.bench" not in sys.modules
        print(callable(gamlens.bench.external), callable(gamlens.adapters.quantus), hasattr(gamlens, "benches"))
    """
    assert run(code) == "True True False"
