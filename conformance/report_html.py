"""--report-html: the report as one file that needs nothing else, with the ulps of every mismatch, and of the noise floor, as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path

from conformance.report import STATES, write
from references.floor import _record
from references.floor._study import EDGES

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c1c1c; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left } pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: 13px }
.gate { font: 600 1.1rem ui-monospace, monospace } .bad { color: #b00020; font-weight: 600 } .idle { color: #767676 }
svg text { font: 11px system-ui, sans-serif; fill: #1c1c1c } figure { margin: .5rem 0 1.5rem } figcaption { color: #555 }
"""
BAR, GAP, HEIGHT = 44, 6, 120


def write_html(path: Path, made: Mapping) -> None:
    write(path, page(made))


def page(made: Mapping) -> str:
    """`made`: what `report.document` returns."""
    machine = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in made["machine"].items())
    failed = [one for one in made["records"] if one["state"] in ("mismatch", "error")]
    differing = "".join(map(_failure, failed)) or "<p>Nothing that was compared differs.</p>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Kernel gate</title><style>{STYLE}</style>'
        f'<h1>Kernel gate</h1><p class="gate">{escape(made["gate"])}</p>{_table(made)}'
        f"{differing}{floor_section(_record.read())}<h2>Machine</h2><table>{machine}</table></html>\n"
    )


def _table(made: Mapping) -> str:
    heads = ("kernel", "lane", "cases", *STATES, "worst ulp", "build")
    body = []
    for row in made["table"]:
        built = made["build_seconds"].get(row["kernel"], "") if row["lane"] == "device" else ""
        cells = [row["kernel"], row["lane"], row["cases"], *(_state(row, state) for state in STATES), escape(row["worst"])]
        cells.append("cached" if built is None else f"{built:.1f} s" if built else "")
        body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(body)}</table>"


def _state(row: Mapping, state: str) -> str:
    if not row[state]:
        return "0"
    style = {"mismatch": "bad", "error": "bad", "not run": "idle"}.get(state, "")
    return f'<span class="{style}">{row[state]}</span>'


def _failure(one: Mapping) -> str:
    pictures = "".join(_figure(name, histogram) for name, histogram in one.get("histograms", {}).items() if histogram)
    return f"<h2>{escape(one['kernel'])}/{escape(one['case'])} ({one['lane']}, {one['state']})</h2><pre>{escape(one.get('text', ''))}</pre>{pictures}"


def _figure(name: str, histogram: Mapping[str, int]) -> str:
    return f"<figure>{histogram_svg(histogram)}<figcaption>{escape(name)}: elements that differ, by signed distance</figcaption></figure>"


def floor_section(entries: Mapping[str, Mapping]) -> str:
    """What goldens/floor.json holds: numbers of every pair and regime, with a picture."""
    if not entries:
        return ""
    heads = ("subject", "pair and regime", "elements", "median", "p90", "p99", "p99.99", "max", "bound", "elements by ULP apart")
    body = []
    for name, entry in entries.items():
        for pair, kept in entry["pairs"].items():
            for regime, one in kept["regimes"].items():
                numbers = [f"{one[what]:.3f}" for what in ("median", "p90", "p99", "p9999", "max")]
                label = f'<span title="{escape(kept["why"])}">{escape(pair)}, {escape(regime)}</span>'
                cells = [escape(name), label, f"{one['elements']:,}", *numbers, f"{kept['ulp']:g}", _shares_svg(one["histogram"], kept["ulp"])]
                body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    commands = "".join(f"<li><code>{escape(entry['command'])}</code></li>" for entry in entries.values())
    rows = f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(body)}"
    said = "<p>ULP (bf16 of outputs, f32 of an LSE) between what may differ, as recorded by</p>"
    return f"<h2>Deviation distributions</h2>{said}<ul>{commands}</ul><table>{rows}</table>"


def _shares_svg(histogram: Sequence[int], bound: float) -> str:
    """Shares of all elements, on a logarithmic height down to 1e-6; red beyond the bound."""
    total, width, height = sum(histogram), 26, 60
    bars = []
    for i, count in enumerate(histogram):
        label = "0" if i == 0 else f"{EDGES[i]:g}" if i < len(EDGES) else "more"
        tall = round(height * (1 + log10(max(count / total, 1e-6)) / 6)) if count else 0
        colour = "#b00020" if i == len(EDGES) or EDGES[max(i - 1, 0)] >= bound else "#2f6f9f"
        bars.append(f'<rect x="{i * width}" y="{height - tall}" width="{width - 3}" height="{tall}" fill="{colour}"><title>{count:,}</title></rect>'
                    f'<text x="{i * width + width // 2}" y="{height + 12}" text-anchor="middle" style="font-size:8px">{label}</text>')
    return f'<svg width="{width * len(histogram)}" height="{height + 16}" role="img" aria-label="shares by ULP">{"".join(bars)}</svg>'


def histogram_svg(histogram: Mapping[str, int]) -> str:
    """Bars by signed power of two (compare.Difference.histogram); every bar has its count above, so the heights may be logarithmic."""
    buckets = sorted((int(bucket), count) for bucket, count in histogram.items())
    most = max(count for _, count in buckets).bit_length()
    width = GAP + len(buckets) * (BAR + GAP)
    bars = [_bar(GAP + i * (BAR + GAP), bucket, count, HEIGHT * count.bit_length() // most) for i, (bucket, count) in enumerate(buckets)]
    return f'<svg width="{width}" height="{HEIGHT + 44}" role="img" aria-label="ulp histogram">{"".join(bars)}</svg>'


def _bar(x: int, bucket: int, count: int, height: int) -> str:
    top, middle = 20 + HEIGHT - height, x + BAR // 2
    return (
        f'<rect x="{x}" y="{top}" width="{BAR}" height="{height}" fill="{"#b00020" if abs(bucket) > 1 else "#d9822b"}"/>'
        f'<text x="{middle}" y="{top - 4}" text-anchor="middle">{count:,}</text>'
        f'<text x="{middle}" y="{HEIGHT + 36}" text-anchor="middle">{bucket_text(bucket)}</text>'
    )


def bucket_text(bucket: int) -> str:
    """`±0`, `+1`, `-2..3`, `+4..7`."""
    if bucket == 0:
        return "±0"
    low, high, sign = 1 << abs(bucket) - 1, (1 << abs(bucket)) - 1, "+" if bucket > 0 else "-"
    return f"{sign}{low}" if low == high else f"{sign}{low}..{high}" if abs(bucket) < 8 else f"{sign}2^{abs(bucket) - 1}"


