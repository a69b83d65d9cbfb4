# SPDX-License-Identifier: Apache-2.0
"""The ratios as a bar chart, drawn by gnuplot."""
import shutil
import subprocess

SCRIPT = """\
set terminal svg size 1400,620 font 'sans-serif,13' background rgb 'white'
set output '{path}'
set title 'Rates through a mount, over those of the folder itself (1 = costs nothing)'
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.9 noborder
set boxwidth 0.95
set xtics rotate by -38 left nomirror scale 0 noenhanced
set ytics nomirror
set yrange [0:{top}]
set grid ytics lc rgb '#dddddd'
set key top right horizontal
set bmargin 10
set rmargin 12
set arrow from graph 0, first 1 to graph 1, first 1 nohead lc rgb '#555555' dashtype 2
$ratios << END
{data}
END
plot {plots}
"""
COLOURS = {"untracked": "#1b6ca8", "passthrough": "#1b6ca8", "tracked": "#59a5d8", "passthrough_ll": "#e09f3e"}


def draw(results, columns, path):
    """The path, or None where there is no gnuplot."""
    if not shutil.which("gnuplot"):
        return None
    others = [column for column in columns if column != "native"]
    lines = ["row " + " ".join(others)]
    for r in results:
        ratios = [r["columns"].get(column, {}).get("ratio") for column in others]
        lines.append(f'"{r["row"]}" ' + " ".join("?" if ratio is None else f"{ratio:.4f}" for ratio in ratios))
    plots = ", ".join(f"$ratios using {i + 2}:xtic(1) title '{column}' noenhanced "
                      f"lc rgb '{COLOURS[column]}'" for i, column in enumerate(others))
    highest = max(c["ratio"] for r in results for c in r["columns"].values())
    script = SCRIPT.format(path=path.replace("'", "''"), data="\n".join(lines), plots=plots,
                           top=min(max(1.2, highest * 1.05), 2.5))
    subprocess.run(["gnuplot"], input=f"set datafile missing '?'\n{script}", text=True, check=True, timeout=60)
    return path
