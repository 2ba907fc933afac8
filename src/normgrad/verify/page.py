"""One page that holds a whole check."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from html import escape

from normgrad.page import Cell, environment_table, page, section, table
from normgrad.verify.foreign import Outcome, Verdict
from normgrad.verify.summary import Group, Kind, summary

_STYLES = {"PASS": "good", "FAIL": "bad", "NONE": ""}


def render(outcomes: list[Outcome], environment: Mapping[str, object]) -> str:
    """The page as text."""
    found = summary(outcomes)
    count = found.verdicts
    who = ", ".join(dict.fromkeys(one.who for one in outcomes)) or "nobody"
    lead = (
        f"{escape(who)}: {count['PASS']} cases passed, {count['FAIL']} failed, "
        f"{count['NONE']} are not offered. Every result is compared with a float64 reference; an "
        "error is given as a share of its budget (1 is the most that a right implementation may "
        "miss) and in units in the last place."
    )
    parts = [f"<p>{lead}</p>", section("By operator and type", _by_type(found.groups))]
    picture = _picture(outcomes)
    if picture:
        parts.append(section("Error over budget, case by case", picture))
    parts.append(section("By kind of case", _by_kind(found.kinds)))
    failed = [one for one in outcomes if one.verdict == "FAIL"]
    if failed:
        parts.append(section("What failed", _listed(failed)))
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
            f"{worst.share:.3g}",
            f"{ulps:.3g}",
            Cell("" if several is None else str(several), "bad" if several else ""),
            f"{worst.case}: {worst.detail}",
        )
        for who, op, dtype, count, worst, ulps, several in groups
    ]
    header = ("who", "operator", "type", "pass", "fail", "not offered", "worst/budget")
    return table((*header, "ulp", "other bits", "worst element"), rows)


def _by_kind(kinds: list[Kind]) -> str:
    rows = [(op, kind, *_counts(count)) for op, kind, count in kinds]
    return table(("operator", "kind", "pass", "fail", "not offered"), rows)


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
            Cell(one.verdict, _STYLES[one.verdict]),
            f"{one.share:.3g}",
            f"{one.ulps:.3g}",
            {True: "same", False: "other", None: ""}[one.deterministic],
            one.detail,
        )
        for one in outcomes
    ]
    header = ("operator", "case", "kind", "type", "verdict", "error/budget", "ulp", "bits")
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
