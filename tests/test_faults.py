"""The faults of tools/results/faults.txt can be planted, and are measured once."""

from unittest.mock import Mock

import pytest

from tools import records
from tools.results import faults


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_stands_in_the_script(fault):
    assert fault.new in faults.faulty_text(fault)


def test_a_fault_whose_lines_have_changed_is_named():
    lost = faults.Fault("lost", old="a line that is not there")
    with pytest.raises(ValueError, match="lost: the script has its lines 0 times"):
        faults.faulty_text(lost)
    with pytest.raises(ValueError, match="'a line' belongs to no fault"):
        faults.read_faults("a line\n")


def test_every_fault_is_measured_once(tmp_path, monkeypatch):
    """Those of the list, and the same without a fault, are all that is on record."""
    on_record = records.read("planted")
    copied = Mock(return_value={"losses": "2.0 0.1"})
    bleu = Mock(return_value=40.0)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(faults, "copy_training", copied)
    for kind, (_, made, seeds) in faults.MEASURES.items():
        monkeypatch.setitem(faults.MEASURES, kind, (bleu, made, seeds))
    for _ in range(2):
        faults.copying()
        faults.translating()
    for measure in (copied, bleu):
        assert len({each.args for each in measure.call_args_list}) == measure.call_count
    record = records.read("planted")
    for kind in ("copying", *faults.MEASURES):
        assert record[kind].keys() == on_record[kind].keys()
        for name, runs in record[kind].items():
            assert len(runs) == len(on_record[kind][name])


@pytest.mark.parametrize("kind", ["copying", *faults.MEASURES])
def test_a_fault_that_would_not_compare_is_refused_before_it_is_measured(
    tmp_path, monkeypatch, kind
):
    """What is on record compares with itself, and not with another version of PyTorch."""
    planted = records.read("planted")
    made = planted["made"][kind][0]
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    records.write("planted", {"made": planted["made"]})
    assert faults.check_kind(kind, made | {"torch": "2.13.0+cpu", "machine": "another"})
    monkeypatch.setattr(records, "circumstances", lambda: made | {"torch": "2.14.0"})
    monkeypatch.setattr(faults, "copy_training", None)
    stamped = {kind: (None, records.circumstances, (1,))} if kind in faults.MEASURES else {}
    monkeypatch.setattr(faults, "MEASURES", stamped)
    with pytest.raises(ValueError, match=rf"share torch.*'{kind} before': '2\.13\.0'"):
        (faults.translating if stamped else faults.copying)()
