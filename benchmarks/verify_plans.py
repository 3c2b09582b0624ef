#!/usr/bin/env python3
"""Compares predicted with measured steps of many strategies of several recipes.

    trestle calibrate --out here.toml
    benchmarks/verify_plans.py --machine here.toml --out build/verify   # forty strategies of each of four recipes
    benchmarks/verify_plans.py --strategies 2 --rounds 1 --steps 1 --recipes unet_quick --out build/verify

Run it on an idle machine. For each recipe and number of devices it runs `trestle plan RECIPE --verify`, once for each family of
strategies so that slow ones are in the table too. After each recipe it writes verify.json, verify.md and verify.svg."""
import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The recipes, and the flags that make a step of theirs short enough.
RECIPES = {
    "unet_quick": [],
    "resnet50_pipelined": ["--batch", "16"],
    "gpt_characters": [],
    "unet3d_quick": [],
}
TOLERANCE = 0.08
FAMILIES = ["pipeline=1,tensor=1,level=0", "pipeline=1,tensor=1,level=1", "pipeline=1,tensor=1,level=3",
            "tensor=1,data=1", "pipeline=1,data=1"]


def verified(arguments, recipe, devices, family, count):
    """Returns the verification of the best `count` plans of a family; None where no strategy is legal or fits."""
    command = [arguments.program, "plan", str(ROOT / "recipes" / f"{recipe}.toml"), *RECIPES[recipe], "--devices", str(devices),
               "--keep", family, "--verify", str(count), "--rounds", str(arguments.rounds), "--steps", str(arguments.steps),
               "--ranks", arguments.ranks, "--json"]
    if arguments.machine:
        command += ["--machine", arguments.machine]
    if arguments.residuals:
        command += ["--save-residuals", arguments.residuals]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode not in (0, 1) or len(lines) < 2:
        print(f"{recipe} on {devices} with {family}: {done.stderr.strip().splitlines()[:1] or 'no plan fits'}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def rows_of(arguments):
    """Yields all rows so far, after each recipe."""
    rows = []
    for recipe in arguments.recipes:
        left = arguments.strategies
        for devices in arguments.devices:
            for family in FAMILIES:
                share = max(1, arguments.strategies // (len(FAMILIES) * len(arguments.devices)))
                count = min(share, left)
                if count == 0:
                    continue
                result = verified(arguments, recipe, devices, family, count)
                for plan in result["plans"] if result else []:
                    rows.append({"recipe": recipe, "devices": devices, **plan})
                    left -= 1
                print(f"{recipe} on {devices} with {family}: {len(rows)} plans so far", file=sys.stderr)
        yield rows


def mean(values):
    return sum(values) / len(values) if values else 0


def table(rows):
    lines = ["| recipe | devices | strategy | simulated | measured | error | spread | peak, paper | peak, measured |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if "measured_step_seconds" not in row:
            lines.append(f"| {row['recipe']} | {row['devices']} | {row['strategy']} | {1000 * row['simulated_step_seconds']:.0f} ms "
                         f"| failed: {row.get('error', 'not measured').splitlines()[0]} | | | | |")
            continue
        peak = f"{row['measured_peak_bytes'] / 2**20:.1f} MiB" if "measured_peak_bytes" in row else "no meter"
        lines.append(f"| {row['recipe']} | {row['devices']} | {row['strategy']} | {1000 * row['simulated_step_seconds']:.0f} ms "
                     f"| {1000 * row['measured_step_seconds']:.0f} ms | {100 * row['time_error']:+.1f} % "
                     f"| {100 * row['runs_spread']:.1f} % | {row['simulated_peak_bytes'] / 2**20:.1f} MiB | {peak} |")
    measured = [row for row in rows if "measured_step_seconds" in row]
    peaks = [abs(row["peak_error"]) for row in measured if "peak_error" in row]
    lines += ["", f"{len(measured)} of {len(rows)} plans were measured. Times differ by {100 * mean([abs(r['time_error']) for r in measured]):.1f} % "
              f"on average, at most by {100 * max([abs(r['time_error']) for r in measured], default=0):.1f} %; "
              + (f"peaks by {100 * mean(peaks):.1f} % on average, at most by {100 * max(peaks):.1f} %. " if peaks
                 else "no device has a meter of its peak. ") +
              f"{sum(abs(r['time_error']) <= max(TOLERANCE, r['runs_spread']) for r in measured)} times are within {100 * TOLERANCE:.0f} %, "
              "or within the spread of their runs."]
    for recipe in dict.fromkeys(row["recipe"] for row in measured):
        own = [row for row in measured if row["recipe"] == recipe]
        for devices in dict.fromkeys(row["devices"] for row in own):
            of = [row for row in own if row["devices"] == devices]
            pick = min(of, key=lambda row: row["simulated_step_seconds"])
            best = min(of, key=lambda row: row["measured_step_seconds"])
            slower = pick["measured_step_seconds"] / best["measured_step_seconds"] - 1
            lines.append(f"- {recipe} on {devices} devices: the pick is {100 * slower:.1f} % slower than the fastest of {len(of)} "
                         f"that were measured; their runs differ by up to {100 * max(row['runs_spread'] for row in of):.1f} %.")
    return "\n".join(lines) + "\n"


COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#bf8700", "#57606a"]


def picture(rows):
    """Predicted against measured, both axes logarithmic, with the range of 8 %."""
    import math
    measured = [row for row in rows if "measured_step_seconds" in row]
    times = [row[key] for row in measured for key in ("measured_step_seconds", "simulated_step_seconds")]
    low, high = math.log(min(times) * 0.8), math.log(max(times) * 1.25)
    width, height, left, top, size = 720, 560, 80, 40, 440
    place = lambda seconds: (math.log(seconds) - low) / (high - low) * size
    recipes = list(dict.fromkeys(row["recipe"] for row in measured))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="24" font-size="15">Steps of plans: simulated against measured</text>',
           f'<rect x="{left}" y="{top}" width="{size}" height="{size}" fill="none" stroke="#57606a"/>']
    for share in (1 / (1 + TOLERANCE), 1, 1 + TOLERANCE):
        shift = math.log(share) / (high - low) * size
        dash = "" if share == 1 else ' stroke-dasharray="4 4"'
        x1, y1, x2, y2 = max(0, -shift), max(0, shift), size - max(0, shift), size - max(0, -shift)
        out.append(f'<line x1="{left + x1:.1f}" y1="{top + size - y1:.1f}" x2="{left + x2:.1f}" y2="{top + size - y2:.1f}" '
                   f'stroke="#8c959f"{dash}/>')
    step = 10 ** math.floor(math.log10(min(times)))
    while step <= max(times) * 1.25:
        for factor in (1, 2, 5):
            value = step * factor
            if low <= math.log(value) <= high:
                at = place(value)
                words = f"{value:g} s" if value >= 1 else f"{1000 * value:g} ms"
                out.append(f'<text x="{left + at:.1f}" y="{top + size + 18}" text-anchor="middle">{words}</text>')
                out.append(f'<text x="{left - 8}" y="{top + size - at + 4:.1f}" text-anchor="end">{words}</text>')
        step *= 10
    for row in measured:
        colour = COLOURS[recipes.index(row["recipe"]) % len(COLOURS)]
        x, y = left + place(row["measured_step_seconds"]), top + size - place(row["simulated_step_seconds"])
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.7"><title>{row["recipe"]}, '
                   f'{row["devices"]} devices: {row["strategy"]}</title></circle>')
    for i, recipe in enumerate(recipes):
        y = top + 16 + 22 * i
        out.append(f'<circle cx="{left + size + 24}" cy="{y - 4}" r="5" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(f'<text x="{left + size + 36}" y="{y}">{recipe}</text>')
    y = top + 16 + 22 * len(recipes)
    out.append(f'<text x="{left + size + 16}" y="{y}" fill="#57606a">dashed: 8 %</text>')
    out.append(f'<text x="{left + size / 2}" y="{height - 30}" text-anchor="middle">measured</text>')
    out.append(f'<text x="20" y="{top + size / 2}" text-anchor="middle" transform="rotate(-90 20 {top + size / 2})">simulated</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/apps/trestle/trestle"), help="the trestle program")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--devices", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--strategies", type=int, default=40, help="of each recipe")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", default="processes", choices=["processes", "threads"])
    parser.add_argument("--machine", help="a file of trestle calibrate on this machine: its tables of messages and optimizers")
    parser.add_argument("--residuals", help="also add the steps to this file, for trestle plan --residuals")
    parser.add_argument("--out", required=True, help="the folder for verify.json, verify.md and verify.svg")
    arguments = parser.parse_args()
    if not Path(arguments.program).exists():
        sys.exit(f"there is no {arguments.program}; build it with the preset release, or name another one with --program")
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for rows in rows_of(arguments):
        if not any("measured_step_seconds" in row for row in rows):
            continue
        (out / "verify.json").write_text(json.dumps(rows, indent=1) + "\n")
        (out / "verify.md").write_text(table(rows))
        (out / "verify.svg").write_text(picture(rows))
    if not any("measured_step_seconds" in row for row in rows):
        sys.exit("no plan was measured")
    print(table(rows))


if __name__ == "__main__":
    main()
