"""The faults of tools/results/faults.txt can be planted, and are measured once."""

from collections import Counter
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


def test_what_is_on_record_is_listed():
    record = records.read("planted")
    kinds = {fault.name: fault.measured for fault in faults.FAULTS if fault.measured}
    measured = {"copying": ("copy", "wide"), "demonstration": ("demonstration",)}
    for kind in ("copying", "demonstration", "shipped"):
        of_kind = {name for name in kinds if kinds[name] in measured.get(kind, (kind,))}
        assert {name for name in record[kind] if not name.startswith(faults.SOUND)} == of_kind


def test_nothing_is_measured_twice(tmp_path, monkeypatch):
    copied = Mock(return_value={"losses": "2.0 0.1"})
    bleu = Mock(return_value=40.0)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(faults, "copy_training", copied)
    for kind, (_, made, seeds) in faults.MEASURES.items():
        monkeypatch.setitem(faults.MEASURES, kind, (bleu, made, seeds))
    for _ in range(2):
        for command in ("copying", "translating"):
            assert faults.main([command]) == 0
    number = Counter(fault.measured for fault in faults.FAULTS)
    assert copied.call_count == 3 * (number["copy"] + 1) + 3 * (number["wide"] + 1)
    assert bleu.call_count == 3 * (number["demonstration"] + 1) + number["shipped"] + 1
    for measure in (copied, bleu):
        assert len({each.args for each in measure.call_args_list}) == measure.call_count
    record = records.read("planted")
    assert record["made"]["shipped"][0]["model"]


def test_results_of_two_versions_of_pytorch_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    fault = faults.FAULTS[0]
    made = {"machine": "a toy", "torch": "2.13.0", "device": "cpu", "format": "fp32"}
    faults.keep("shipped", fault, [40.0], made)
    faults.keep("shipped", fault, [40.0], made | {"machine": "another"})
    assert len(records.read("planted")["made"]["shipped"]) == 2
    with pytest.raises(ValueError, match=r"share torch.*'shipped before': '2\.13\.0'"):
        faults.keep("shipped", fault, [40.0], made | {"torch": "2.14.0"})
