"""One page that holds a whole check."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from html import escape
from typing import Final

from normgrad.html_page import Cell, environment_table, page, section, table
from normgrad.verify.foreign import Outcome, Verdict
from normgrad.verify.summary import Group, Kind, share_text, summary, ulps_text

_VERDICTS: Final[dict[Verdict, tuple[str, str]]] = {
    "PASS": ("right", "good"),
    "FAIL": ("wrong", "bad"),
    "NONE": ("not supported", ""),
}
_COUNTED: Final = ("right", "wrong", "not supported")


def render(outcomes: list[Outcome], environment: Mapping[str, object]) -> str:
    """The page as text."""
    found = summary(outcomes)
    count = found.verdicts
    who = ", ".join(dict.fromkeys(one.who for one in outcomes)) or "nobody"
    lead = (
        f"{escape(who)}: {count['PASS']} cases are right, {count['FAIL']} wrong, "
        f"{count['NONE']} not supported. Every element of every result is compared with the same "
        "formula in float64. <b>error/bound</b> is the error of the worst element over the most "
        "that rounding may cause there: up to 1 is right. <b>ulp</b> is the same error in units "
        "of that element's last place. <b>torch</b> is the error/bound of torch's own operator "
        "in the same case, where it was asked."
    )
    parts = [f"<p>{lead}</p>", section("By operator and type", _by_type(found.groups))]
    picture = _picture(outcomes)
    if picture:
        parts.append(section("Error over bound, case by case", picture))
    parts.append(section("By kind of case", _by_kind(found.kinds)))
    failed = [one for one in outcomes if one.verdict == "FAIL"]
    if failed:
        parts.append(section("What is wrong", _listed(failed)))
    parts.append(section("Every case", _listed(outcomes)))
    parts.append(section("Where", environment_table(environment)))
    return page("normgrad check", parts)


def _by_type(groups: list[Group]) -> str:
    rows = [
        (
            who,
            op,
            dtype,
            *_counts(count),
            share_text(worst.share),
            ulps_text(worst.ulps),
            share_text(worst.torch_share),
            Cell("" if several is None else str(several), "bad" if several else ""),
            f"{worst.case}: {worst.detail}",
        )
        for who, op, dtype, count, worst, several in groups
    ]
    header = ("who", "operator", "type", *_COUNTED, "error/bound", "ulp", "torch")
    return table((*header, "runs differ", "worst element"), rows)


def _by_kind(kinds: list[Kind]) -> str:
    rows = [(op, kind, *_counts(count)) for op, kind, count in kinds]
    return table(("operator", "kind", *_COUNTED), rows)


def _counts(count: Counter[Verdict]) -> tuple[str, Cell, str]:
    failed = Cell(str(count["FAIL"]), "bad" if count["FAIL"] else "")
    return str(count["PASS"]), failed, str(count["NONE"])


def _listed(outcomes: list[Outcome]) -> str:
    rows = [
        (
            one.op,
            one.case,
            one.kind,
            one.dtype,
            Cell(*_VERDICTS[one.verdict]),
            share_text(one.share),
            ulps_text(one.ulps),
            share_text(one.torch_share),
            {True: "alike", False: "differ", None: ""}[one.deterministic],
            one.detail,
        )
        for one in outcomes
    ]
    header = ("operator", "case", "kind", "type", "verdict", "error/bound", "ulp", "torch", "runs")
    return table((*header, "worst element, or why"), rows)


def _picture(outcomes: list[Outcome]) -> str:
    from normgrad.bench import plots

    measured = [one for one in outcomes if one.share > 0]
    if plots.unavailable() or not measured:
        return ""
    groups: dict[str, list[float]] = defaultdict(list)
    for one in measured:
        groups[f"{one.op} {one.dtype}"].append(one.share)
    return f"<figure>{plots.strip(groups)}</figure>"
