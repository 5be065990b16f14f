"""``make bench-compare`` on two saved runs with known numbers."""

from __future__ import annotations

import json

from benchmarks import compare


def saved(path, medians: dict[str, float]) -> str:
    rows = [
        {"fullname": f"benchmarks/{name}", "stats": {"median": m, "q1": m * 0.95, "q3": m * 1.05}}
        for name, m in medians.items()
    ]
    path.write_text(json.dumps({"benchmarks": rows}))
    return str(path)


def test_table_of_two_runs(tmp_path, capsys):
    old = saved(tmp_path / "old.json", {"k.py::a[8]": 10e-6, "k.py::b[8]": 10e-6, "k.py::c[8]": 10e-6})
    new = saved(
        tmp_path / "new.json", {"k.py::a[8]": 5e-6, "k.py::b[8]": 10.2e-6, "k.py::c[8]": 20e-6, "k.py::d": 1e-6}
    )
    assert compare.main([new, old]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if "k.py" in line}
    assert rows["k.py::a[8]"] == ["10.0", "us", "5.0", "us", "0.50", "faster"]
    assert rows["k.py::b[8]"] == ["10.0", "us", "10.2", "us", "1.02"]
    assert rows["k.py::c[8]"] == ["10.0", "us", "20.0", "us", "2.00", "slower"]
    assert rows["k.py::d"] == ["new", "1.0", "us"]


def test_nothing_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert compare.main([]) == 2
    assert "run `make bench` twice first" in capsys.readouterr().err
