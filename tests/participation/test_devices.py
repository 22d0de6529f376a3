"""Devices of clients: draws, files of the user's, presence, and time by hand."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import planning
import pytest

import fl
from fl.api import BuildContext, DeviceTable, Positive, Presence
from fl.base import plugins, registry, rng
from fl.base.errors import ConfigError, FedloomError, Location
from fl.base.schema import CLOCK
from fl.plan import plan

DAY = 86_400.0
DRAWN = ("equal", "log-normal", "zipf", "classes")


def built(name: str, clients: int, seed: int = 0, **values: Any) -> DeviceTable:
    component = registry.find("devices", name, Location("test"))
    made = component.instantiate(component.parse(values, Location("test")))
    context = cast(BuildContext, SimpleNamespace(clients=clients, seed=seed))
    devices = made.build(context)
    assert isinstance(devices, DeviceTable)
    return devices


# Presence


def test_presence_by_hand() -> None:
    """A period of ten seconds: client 0 is there from 2 to 5, client 1 from 8 over its end to 1,
    client 3 always.
    """
    begin, end = np.array([2.0, 0, 8, 0]), np.array([5.0, 1, 10, 10])
    presence = Presence(np.array([0, 1, 1, 3]), begin, end, 10.0)
    assert presence.present(0.5).tolist() == [1, 3]
    assert presence.present(32.0).tolist() == [0, 3]
    assert presence.present(35.0).tolist() == [3]
    assert presence.leave(np.array([0, 3]), 33.0).tolist() == [35, np.inf]
    assert presence.leave(np.array([1]), 8.5).tolist() == [11]
    assert presence.leave(np.array([1, 2]), 20.25).tolist() == [21, 20.25], "2 is never there"
    assert presence.next_time(np.array([0, 1]), 6.0) == 8
    assert presence.next_time(np.array([0]), 6.0) == 12, "in the next period"
    assert presence.next_time(np.array([0]), 24.0) == 24, "it is there"
    assert presence.next_time(np.array([2]), 0.0) == np.inf


def test_a_client_is_no_longer_there_when_it_leaves() -> None:
    """Else a server would send it a model again and again at one time."""
    presence = built("equal", 20, present=0.3, day=60).presence
    assert presence is not None
    for seconds in np.random.default_rng(0).uniform(0, 1e5, 300):
        clients = presence.present(seconds)
        for client, time in zip(clients, presence.leave(clients, seconds), strict=True):
            assert presence.has(int(client), seconds)
            assert not presence.has(int(client), time)
            assert client not in presence.present(time)
            assert seconds < time <= seconds + 18 + 1e-9


def test_clients_may_have_periods_of_their_own() -> None:
    presence = Presence(
        np.array([0, 1]), np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([4.0, 10.0])
    )
    assert presence.present(5.5).tolist() == [0]
    assert presence.present(11.5).tolist() == [1]
    assert presence.next_time(np.array([1]), 3.0) == 11
    assert presence.leave(np.array([0]), 9.5).tolist() == [10]


@pytest.mark.parametrize("seconds", [0.1, 123_456.789, 98_765_432.1])
def test_at_the_next_time_somebody_is_there(seconds: float) -> None:
    presence = built("equal", 50, present=0.01).presence
    assert presence is not None
    for client in range(50):
        then = presence.next_time(np.array([client]), seconds)
        assert client in presence.present(then)
        assert then - seconds <= DAY + 1e-6


# Draws


def test_seconds_of_a_round_by_hand() -> None:
    """1,000 bytes down, 500 up, 2,000 operations."""
    ones = np.ones(2)
    devices = DeviceTable(np.array([1e3, 4e3]), np.array([500.0, 1000]), 250 * ones, 0 * ones)
    assert devices.seconds(1000, 500, 2000 * ones).tolist() == [2 + 2 + 2, 1 + 0.5 + 2]


@pytest.mark.parametrize("name", DRAWN)
def test_devices_do_not_depend_on_the_number_of_clients(name: str) -> None:
    few, many = built(name, 7, present=0.4), built(name, 500, present=0.4)
    for column in ("speed", "download", "upload", "failure"):
        assert getattr(few, column).tolist() == getattr(many, column)[:7].tolist()
    assert few.presence is not None
    assert many.presence is not None
    kept = many.presence.clients < 7
    for column in ("clients", "begin", "end"):
        times = getattr(many.presence, column)[kept]
        assert getattr(few.presence, column).tolist() == times.tolist()
    other = built(name, 7, seed=1, present=0.4)
    assert other.presence is not None
    assert other.presence.begin.tolist() != few.presence.begin.tolist()


def test_log_normal_devices_have_their_medians_and_spreads() -> None:
    devices = built("log-normal", 20_000, speed=5e9, speed_sigma=0.8, bandwidth_sigma=0.3)
    assert np.median(devices.speed) == pytest.approx(5e9, rel=0.03)
    assert np.log(devices.speed).std() == pytest.approx(0.8, rel=0.03)
    assert np.median(devices.upload) == pytest.approx(1.25e6, rel=0.03)
    np.testing.assert_allclose(devices.download, 2 * devices.upload)
    assert abs(np.corrcoef(np.log(devices.speed), np.log(devices.upload))[0, 1]) < 0.03


def test_zipf_devices_take_the_time_of_their_rank() -> None:
    """Of three ranks with a = 1, the middle one has 1 + 3 (1/2 - 1/3) / (1 - 1/3) = 1.75 times."""
    devices = built("zipf", 3_000, speed=7.0, slowest=4, a=1, ranks=3)
    times, counts = np.unique(7 / devices.speed, return_counts=True)
    np.testing.assert_allclose(times, [1, 1.75, 4])
    np.testing.assert_allclose(counts / 3_000, 1 / 3, atol=0.03)


def test_classes_have_their_shares() -> None:
    devices = built(
        *("classes", 10_000), shares=[0.2, 0.3, 0.5], speeds=[3, 2, 1], uploads=[30, 20, 10]
    )
    for speed, share in ((3, 0.2), (2, 0.3), (1, 0.5)):
        assert (devices.speed == speed).mean() == pytest.approx(share, abs=0.02)
    np.testing.assert_allclose(devices.upload, 10 * devices.speed)


def test_a_client_is_there_for_its_share_of_the_day() -> None:
    presence = built("equal", 4_000, present=0.25).presence
    assert presence is not None
    hours = np.bincount(presence.clients, presence.end - presence.begin) / DAY
    np.testing.assert_allclose(hours, 0.25)
    assert len(presence.present(40_000.0)) / 4_000 == pytest.approx(0.25, abs=0.03)
    short = built("equal", 4_000, present=0.25, day=60).presence
    assert short is not None
    assert short.present(20.0).tolist() == presence.present(20.0 * DAY / 60).tolist()


# Files


def table_file(folder: Path, **columns: list[Any]) -> Path:
    """A table of three clients, with some columns changed; None leaves one out."""
    rows: dict[str, Any] = {
        **{"client": [0, 1, 2], "speed": [1e3, 2e3, 4e3]},
        **{"download": [10.0, 20.0, 30.0], "upload": [1.0, 2.0, 3.0]},
    }
    table = pd.DataFrame({key: value for key, value in (rows | columns).items() if value})
    path = folder / "devices.csv"
    table.to_csv(path, index=False)
    return path


def test_a_table_may_have_any_order_and_times_of_presence(tmp_path: Path) -> None:
    path = table_file(
        tmp_path,
        client=[2, 0, 1, 0, 3],
        speed=[4, 1, 2, 1, 9],
        download=[1] * 5,
        upload=[1] * 5,
        failure=[None, 0.5, None, 0.5, None],
        begin=[None, 60, 10, 20, None],
        end=[None, 70, 20, 30, None],
    )
    devices = built("table", 3, path=str(path), period=100)
    assert devices.speed.tolist() == [1, 2, 4]
    assert devices.failure.tolist() == [0.5, 0, 0]
    assert devices.presence is not None
    assert devices.presence.clients.tolist() == [0, 0, 1, 2]
    assert devices.presence.present(65.0).tolist() == [0, 2]
    assert devices.presence.present(115.0).tolist() == [1, 2]
    parquet = path.with_suffix(".parquet")
    pd.read_csv(path).to_parquet(parquet)
    assert built("table", 3, path=str(parquet), period=100).speed.tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"speed": [1, -2, 3]}, ["'speed'", "row 2", "-2"]),
        ({"speed": None}, ["'speed'", "download"]),
        ({"speed": None, "sped": [1, 2, 3]}, ["'speed'", "'sped'"]),
        ({"failures": [0, 0, 0]}, ["'failures'", "failure"]),
        ({"failure": [0, 0, 1.5]}, ["'failure'", "row 3", "1.5"]),
        ({"client": [0, 1, 3]}, ["'client'", "2 is missing", "0 to 2"]),
        ({"client": [0, 1, 1]}, ["'client'", "row 3"]),
        ({"client": [0, 1, 1.5]}, ["'client'", "row 3", "1.5"]),
        ({"upload": [1, "fast", 3]}, ["'upload'", "row 2", "fast"]),
        ({"begin": [1, 2, 3]}, ["'end'", "row 1"]),
        ({"begin": [1, 2, 3], "end": [2, 2, 4]}, ["'end'", "row 2"]),
        ({"begin": [1, 2, 3], "end": [2, 3, 99_999]}, ["'end'", "row 3", "86400"]),
        (
            {"client": [0, 1, 1], "begin": [1, 2, 4], "end": [2, 3, 5]},
            ["'speed'", "row 3"],
        ),
    ],
)
def test_a_wrong_table_is_told_at_planning(
    tmp_path: Path, columns: dict[str, Any], words: list[str]
) -> None:
    path = table_file(tmp_path, **columns)
    three = {"partitions": [{"dirichlet": {"clients": 3, "alpha": 0.5, "min_samples": 5}}]}
    config = planning.write_config(tmp_path, {**three, "devices": {"table": {"path": str(path)}}})
    with pytest.raises(ConfigError) as raised:
        plan.make(config)
    for word in ("tiny.yaml: devices.table: ", str(path), *words):
        assert word in str(raised.value)


CAPACITY = {
    1: {"computation": 60.0, "communication": 80.0},
    2: {"computation": 30, "communication": 8000.5},
}
BEHAVIOUR = {
    0: {
        **{"duration": 9, "inactive": [30, 60], "finish_time": 100, "active": [10, 50]},
        "model": "CPH1801",
    },
    1: {
        **{"duration": 9, "inactive": [5, 40], "finish_time": 200, "active": [8, 20]},
        "model": "M 2",
    },
}


def write_fedscale(folder: Path, content: Any, name: str = "capacity") -> str:
    """A file in FedScale's form; names that end in .json are JSON."""
    path = folder / name
    path.write_bytes(
        json.dumps(content).encode() if name.endswith(".json") else pickle.dumps(content)
    )
    return str(path)


@pytest.mark.parametrize("ending", ["", ".json"])
def test_files_of_fedscale(tmp_path: Path, ending: str) -> None:
    """6e8 operations in 60 ms are 1e10 a second; 80 kilobits are 10,240 bytes."""
    capacity = write_fedscale(tmp_path, CAPACITY, f"capacity{ending}")
    behaviour = write_fedscale(tmp_path, BEHAVIOUR, f"behaviour{ending}")
    devices = built("fedscale", 3, capacity=capacity, behaviour=behaviour, order="file")
    np.testing.assert_allclose(devices.speed, [1e10, 2e10, 1e10])
    np.testing.assert_allclose(devices.upload, [10_240, 1_024_064, 10_240])
    presence = devices.presence
    assert presence is not None
    assert presence.clients.tolist() == [0, 0, 1, 2, 2], "one interval of device 1 is empty"
    assert presence.present(15.0).tolist() == [0, 2]
    assert presence.present(125.0).tolist() == [0, 2]
    assert presence.present(225.0).tolist() == [0, 1, 2]
    drawn = built("fedscale", 1_000, capacity=capacity, behaviour=behaviour)
    assert (drawn.speed == drawn.speed.max()).mean() == pytest.approx(0.5, abs=0.06)
    few = built("fedscale", 10, capacity=capacity, behaviour=behaviour)
    assert few.speed.tolist() == drawn.speed[:10].tolist()


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("capacity", "behaviour", "words"),
    [
        ({1: {"computation": -1.0, "communication": 2.0}}, None, ["1.computation", "-1.0"]),
        ({1: {"computation": 1.0}}, None, ["1.communication", "None"]),
        ({}, None, ["no devices"]),
        ([1, 2], None, ["no devices"]),
        (Harmful(), None, ["mkdir"]),
        (CAPACITY, {4: {"active": [1], "inactive": [2]}}, ["4.finish_time"]),
        (CAPACITY, {4: {"active": [1], "finish_time": 9}}, ["4", "inactive"]),
        (CAPACITY, {4: {"active": [5], "inactive": [2], "finish_time": 9}}, ["ever there"]),
    ],
)
def test_wrong_files_of_fedscale(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capacity: Any,
    behaviour: Any,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"capacity": write_fedscale(tmp_path, capacity)}
    if behaviour:
        values["behaviour"] = write_fedscale(tmp_path, behaviour, "behaviour")
    with pytest.raises(FedloomError) as raised:
        built("fedscale", 3, **values)
    for word in (str(tmp_path), *words):
        assert word in str(raised.value)
    assert not Path("harm").exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for name, key in (("table", "path"), ("fedscale", "capacity")):
        with pytest.raises(FedloomError, match="does not exist"):
            built(name, 3, **{key: str(tmp_path / "none.csv")})


# Studies


def test_devices_of_a_study_hold_for_all_entries_without_their_own(tmp_path: Path) -> None:
    zipf = {"zipf": {"slowest": 3.0}}
    methods = {
        "fedavg": None,
        "own": {"method": "fedavg", "devices": "equal"},
        "timeless": {"method": "fedavg", "devices": None},
    }
    config = planning.write_config(tmp_path, {"devices": zipf, "methods": methods})
    runs = {run.method: run for run in plan.make(config).runs.values()}
    assert runs["fedavg"].spec["devices"][0]["slowest"] == 3
    assert runs["own"].spec["devices"][0]["name"] == "equal"
    assert "devices" not in runs["timeless"].spec
    planning.write_study(tmp_path, {})
    [plain] = plan.make(config).runs.values()
    assert plain.run == runs["timeless"].run
    for wrong, key in (
        ({"zipf": {"slowest": 0.5}}, "devices.zipf.slowest"),
        ("zipff", "devices.zipff"),
        ({"equal": {}, "zipf": {}}, "devices"),
        ({"classes": {"shares": [0.5, 0.4]}}, "devices.classes: shares"),
        ({"classes": {"speeds": [1, 2, 3]}}, "devices.classes: speeds"),
    ):
        planning.write_study(tmp_path, {"devices": wrong, "methods": {"fedavg": None}})
        with pytest.raises(ConfigError, match=rf"tiny\.yaml: {key}"):
            plan.make(config)


def test_a_run_is_named_by_the_content_of_its_table(tmp_path: Path) -> None:
    equal = dict.fromkeys(("speed", "download", "upload"), [1] * 4)
    path = table_file(tmp_path, client=[0, 1, 2, 3], **equal)
    config = planning.write_config(tmp_path, {"devices": {"table": {"path": str(path)}}})
    first = plan.make(config)
    path.write_text(path.read_text().replace("3,1,1,1", "3,2,1,1"))
    second = plan.make(config)
    assert first.runs.keys().isdisjoint(second.runs)
    assert {str(path)} == first.watched.keys() == second.watched.keys()
    assert first.watched != second.watched


@dataclass(frozen=True)
class Twins:
    """Pairs of equal devices.

    Attributes:
        speed: Of the first pair.
    """

    speed: Positive = 1e9

    def build(self, context: BuildContext) -> DeviceTable:
        """Each pair is twice as fast as the one before."""
        speeds = self.speed * 2.0 ** (np.arange(context.clients) // 2)
        ones = np.ones(context.clients)
        return DeviceTable(speeds, 1e6 * ones, 1e6 * ones, 0 * ones)


@pytest.mark.parametrize(
    "devices",
    [
        "equal",
        {"twins": Twins},
        {"twins": Twins(speed=5e8)},
        {
            "table": {
                "frame": pd.DataFrame(
                    {"client": range(4), "speed": 1e9, "download": 1e6, "upload": 1e6}
                )
            }
        },
    ],
    ids=["name", "class", "instance", "frame"],
)
def test_devices_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))
    keys = {"partitions": planning.STUDY["partitions"], "models": planning.STUDY["models"]}
    call = {"dataset": planning.STUDY["datasets"][0], **keys, "methods": "fedavg", "rounds": 1}
    fl.run(**call, devices=devices, progress=False)
    [path] = Path("results/runs").glob("*/metrics.parquet")
    metrics = pd.read_parquet(path)
    assert metrics.loc[metrics["metric"] == "seconds", "value"].item() > 0


BYTES = 4 * (60 * 5 + 5 + 5 * 10 + 10)
"""Of the weights of an MLP with one hidden layer of 5, in float32."""
STEP = 8 * (2 * 60 * 5 + 2 * 5 * 10) * 2 + 8 * 2 * 5 * 10
"""Operations of a step of 8 samples: both products forward, both for the gradients of weights, and
the second for the gradient of its input."""
WORK = 3 * STEP
"""Of a round of three steps."""


@pytest.mark.parametrize(
    ("training", "failure", "seconds", "busy", "lost"),
    [
        ({}, 0, [13, 26], [4, 3.5, 13], 0),
        ({"deadline": 5.0}, 0, [5, 10], [4, 3.5], 5),
        ({"deadline": 3.0}, 0, [3.5, 7], [3.5], 7),
        ({"participation": 0.67, "over_selection": 1.5}, 0, [4, 8], [4, 3.5], 4),
        ({}, 1, None, [4, 3.5], None),
    ],
)
def test_time_by_hand_on_three_clients(
    tmp_path: Path,
    training: dict[str, Any],
    failure: float,
    seconds: list[float] | None,
    busy: list[float],
    lost: float | None,
) -> None:
    """Down, training and up take 1 + 1 + 2, 0.5 + 2 + 1 and 1 + 10 + 2 seconds."""
    path = table_file(
        tmp_path,
        speed=[WORK, WORK / 2, WORK / 10],
        download=[BYTES, 2 * BYTES, BYTES],
        upload=[BYTES / 2, BYTES, BYTES / 2],
        failure=[0, 0, failure],
    )
    planned = planning.make(
        tmp_path,
        datasets=[{"synthetic": {"clients": 3, "samples": 40, "alpha": 1.0}}],
        partitions=[{"homogeneous": {"clients": 3}}],
        devices={"table": {"path": str(path)}},
        training={"rounds": 2, "local_steps": 3, "batch_size": 8, "lr": 0.05, **training},
    )
    assert planned.train("fedavg") == 0
    [run] = planned.runs("fedavg")
    metrics = planned.store().metrics(run)
    rows = metrics[metrics["split"] == CLOCK].pivot(index="round", columns="metric", values="value")
    if failure:
        # The third client breaks off at a drawn share of its 13 seconds.
        drawn = [rng.generator(0, "failures", round_).random((3, 2))[2, 1] for round_ in (1, 2)]
        ends = np.maximum(4, 13 * np.array(drawn))
        seconds = np.cumsum(ends).tolist()
        np.testing.assert_allclose(rows["lost"], [13 * d / (13 * d + 7.5) for d in drawn])
    else:
        assert lost is not None
        np.testing.assert_allclose(rows["lost"], lost / (lost + sum(busy)))
    np.testing.assert_allclose(rows["seconds"], seconds)
    np.testing.assert_allclose(rows["slowest"], max(busy))
    lengths = np.diff(rows["seconds"], prepend=0.0)
    np.testing.assert_allclose(rows["idle"], 1 - sum(busy) / (lengths * len(busy)), atol=1e-12)
    assert (rows["dropped"] == 3 - len(busy)).all()
    assert (rows["bytes_down"] == 3 * BYTES).all()
    assert (rows["bytes_up"] == len(busy) * BYTES).all()


def test_a_run_that_is_interrupted_ends_at_the_same_time(tmp_path: Path) -> None:
    """Clients come and go within a day of four seconds, and some break off or are late."""
    devices = {
        **{"speed": 1e5, "download": 2e3, "upload": 2e3},
        **{"present": 0.5, "day": 4.0, "failure": 0.3},
    }
    planned = planning.make(
        tmp_path,
        devices={"log-normal": devices},
        training={
            **planning.STUDY["training"],
            "deadline": 4.0,
            "over_selection": 1.5,
            "participation": 0.5,
        },
        methods={"ditto": None},
    )
    assert planned.train("ditto", "whole") == 0
    with planning.signalled(after=3):
        assert planned.train("ditto", "parts") != 0
    assert planned.train("ditto", "parts") == 0
    [run] = planned.runs("ditto")
    assert planned.files(run, "whole") == planned.files(run, "parts")
    rows = planned.store("whole").metrics(run)
    clock = rows[rows["split"] == CLOCK]
    assert clock.loc[clock["metric"] == "dropped", "value"].sum() > 0
    assert clock.loc[clock["metric"] == "seconds", "value"].is_monotonic_increasing
