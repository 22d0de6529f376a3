"""The worlds whose numbers are kept: tiny runs, partitions and data sets, by name.

The first word of a name says which entry a world is about: ``method fedprox: adapt`` is about the
method. ``core`` worlds are about what every run shares. What else a world holds (its model, its
optimizer) is told from the world itself, see `tests.golden.certify`.

A world has the name of its data in `arrays`, and who holds what in `table`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

World = dict[str, Any]

CLASSES, TOKENS = 3, 7
SIZES = (13, 5, 20, 9, 8)
"""Training samples of each client; batches have eight. A sixth client is away in some worlds."""

TRAINING = {
    "rounds": 3,
    "local_epochs": 2,
    "batch_size": 8,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "schedule": "exponential",
    "lr_decay": 0.9,
    "participation": 0.6,
    "precision": "float64",
}
PLAIN = {**TRAINING, "rounds": 2, "local_epochs": 1, "participation": 1.0}

MLP = {"name": "mlp", "hidden": [5]}
NORMED = {"name": "mlp", "hidden": [5], "norm": "batch"}
CNN = {"name": "cnn", "channels": [3, 4]}
VIT = {"name": "vit", "patch": 2, "dim": 4, "depth": 1, "heads": 2, "dropout": 0.3}
UNET = {"name": "unet", "width": 2, "levels": 1, "norm": "batch"}
IMAGE_TEXT = {
    "name": "image-text",
    "features": 4,
    "channels": [2],
    "tokens": TOKENS,
    "width": 3,
    "kernels": [1, 2],
    "filters": 2,
}

L2P = {"iterations": 2, "neumann": 1, "bn_lr": 0.1, "lr_lr": 0.1, "tilde_lr": 0.1}
FEDFA = {"layers": ["0", "4"], "p": 0.8, "statistics_momentum": 0.5}
FEDLGD = {
    "images": 1,
    "global_images": 2,
    "warmup": 2,
    "real": 4,
    "client_steps": 2,
    "server_steps": 2,
    "every": 2,
    "lam": 0.5,
}
HISTOGRAMS = {"lam": 0.3, "bins": 5, "tau": 0.1}

METHODS: dict[str, list[World]] = {
    "afl": [{"eta_lambda": 0.5}],
    "apple": [{"eta_p": 0.05, "until": 1.0}, {"eta_p": 0.05, "until": 0.7, "decay": "cosine"}],
    "apfl": [{}, {"alpha": 0.3, "mixed": "outputs"}, {"alpha": 0.3, "adapt": False}],
    "ccvr": [{"samples": 5, "steps": 3}],
    "cfl": [
        {"after": 1},
        {"after": 1, "bounds": "absolute", "eps1": 5.0, "eps2": 0.01, "most": 3},
        {"after": 1, "eps1": 0.32, "eps2": 0.0},
        {"after": 1, "scored": "trained"},
    ],
    "ditto": [{"lam": 0.4}, {"lam": 0.4, "keep_optimizer": False}, {"shared": "initial"}],
    "elastic": [{}],
    "fedamp": [
        {},
        {"attention": "cosine", "own": 0.3, "sigma": 2.0},
        {"alpha": 0.5, "sigma": 0.3},
        {"attention": "cosine", "of": "moves"},
    ],
    "fedavg": [{}],
    "fedavgm": [{}, {"beta": 0.5, "eta": 0.7}],
    "fedbabu": [{}],
    "fedbn": [{}],
    "fd": [{"gamma": 0.5}],
    "fedala": [{"start_epochs": 2}, {"eta": 0.5, "start_epochs": 1, "layers": ["1"]}],
    "fedas": [{"align_lr": 0.1}, {"align_lr": 0.1, "weighting": "uniform"}],
    "fedcac": [{}, {"tau": 0.8, "beta": 2}],
    "fedcm": [{"alpha": 0.3}, {"alpha": 0.3, "eta_g": 0.5}],
    "fedcp": [{"lam": 0.5}],
    "feddbe": [{"kappa": 2.0}, {"kappa": 2.0, "mu": 0.5}],
    "feddg-ga": [{"step": 0.3}],
    "feddf": [{"server_steps": 3, "server_lr": 0.05}],
    "feddisco": [{"a": 0.5, "b": 0.1}, {"a": 0.5, "b": 0.1, "distance": "l2"}],
    "feddyn": [{"alpha": 0.1}, {"alpha": 0.1, "scored": "mean"}],
    "fedem": [{}, {"models": 2}],
    "fedetf": [{"scale": 2.0}],
    "fedexp": [{}, {"scored": "last", "epsilon": 0.0}],
    "fedfa": [FEDFA, {**FEDFA, "fusion": "direct"}, {**FEDFA, "weighting": "uniform"}],
    "fedfa/c": [{"augment": "batch", "layers": ["0", "4"], "p": 0.8}],
    "fedfa/h": [
        {"augment": "none", "histograms": True, **HISTOGRAMS},
        {"augment": "none", "histograms": True, **HISTOGRAMS, "weighting": "uniform"},
    ],
    "fedfa/plus": [
        {"histograms": True, **FEDFA, **HISTOGRAMS},
        {"histograms": True, **FEDFA, **HISTOGRAMS, "fusion": "direct"},
    ],
    "fedfa/r": [{"augment": "random", "layers": ["0", "4"], "p": 0.8}],
    "fedfm": [
        {"first": 2, "lam": 1.0},
        {"first": 1, "lam": 0.5, "loss": "squared", "anchors": "uniform"},
    ],
    "fedfm/lite": [
        {"lite": True, "first": 2, "lam": 1.0},
        {"lite": True, "first": 1, "lam": 0.5, "loss": "squared", "anchors": "uniform"},
    ],
    "fedfomo": [{"models": 2}, {"models": 2, "epsilon": 0.0, "reference": "trained"}],
    "fedgamma": [{"rho": 0.1}],
    "fedgen": [
        {"server_steps": 3, "server_batch": 8, "server_lr": 0.01},
        {"server_steps": 3, "server_batch": 8, "alpha": 2.0, "teachers": "losses"},
    ],
    "fedgh": [{"server_steps": 3, "server_lr": 0.5}],
    "fedharmo": [{"alpha": 0.1}, {"alpha": 0.1, "spectrum": "mean"}],
    "fediir": [{"penalty": 0.5, "decay": 0.5}],
    "fediot": [{"server_epochs": 2, "width": 4}],
    "fedkd": [{"energy_start": 0.5, "energy_end": 0.8}, {"distillation": 0.3}],
    "fedl2p": [
        L2P,
        {**L2P, "learns": "bn"},
        {**L2P, "learns": "lr", "beta": 0.5},
        {**L2P, "gradient": "fomaml", "clip": 0.01},
        {**L2P, "told": "nothing"},
        {**L2P, "bn_output": "sigmoid", "bn_begin": 0.2},
    ],
    "fedlesam": [{"rho": 0.1}, {"rho": 0.1, "direction": "server"}],
    "fedlgd": [
        FEDLGD,
        {**FEDLGD, "initial": "noise", "regulariser": "mmd"},
        {**FEDLGD, "initial": "real", "kept": 2, "times": 1},
        {**FEDLGD, "client_steps": 9, "server_steps": 9},
        {**FEDLGD, "every": 1, "times": 1},
    ],
    "fedlaw": [{"server_epochs": 2, "server_lr": 0.1}],
    "fedlc": [{"tau": 2.0}],
    "fedmix": [{"lam": 0.2}],
    "fednova": [{}, {"mu": 0.2}],
    "fedntd": [{"beta": 0.5, "tau": 2.0}],
    "fedpac": [{}, {"lam": 0.5, "head_lr": None}],
    "fedpcl": [{"tau": 0.5}],
    "fedper": [{}, {"layers": ["1"]}],
    "fedphp": [{"lam": 0.3}],
    "fedproto": [{}, {"predict": "head", "prototypes": "uniform"}],
    "fedopt": [
        {"tau": 0.1},
        {"server": "yogi", "eta": 0.1},
        {"server": "adagrad", "beta1": 0.0, "eta": 0.1},
    ],
    "fedprox": [
        {"mu": 0.5},
        {"mu": 0.1, "adapt": True, "patience": 1},
        {"mu": 0.1, "adapt": True, "dissimilarity": True},
    ],
    "fedrep": [
        {"head_epochs": 2},
        {"head_epochs": 1, "statistics": "both"},
        {"head_steps": 2},
    ],
    "fedrobust": [{"eta2": 0.1}, {"eta2": 0.1, "matrix": "diagonal"}],
    "fedrod": [{}, {"head": "local"}],
    "fedrs": [{}],
    "fedsac": [
        {},
        {"regulariser": "models", "similarity": "weights", "centred": False, "k": 1},
        {"regulariser": "released", "principal_angles": "greedy", "samples": 4, "until": 0.3},
        {"collaborators": 2, "alike": 0.3, "alpha": 0.5, "beta": 0.5},
        {"noise": 0.5, "crop": 0.8, "k": 2},
    ],
    "fedsam": [{}, {"statistics": "first"}],
    "fedsmoo": [{"rho": 0.1}],
    "fedspeed": [{"rho": 0.1}, {"rho": 0.1, "alpha": 0.5}],
    "fedsr": [{"alpha_l2r": 0.1, "alpha_cmi": 0.1}],
    "fedtgp": [{"server_steps": 3, "server_lr": 0.5}],
    "finetune": [{}, {"keep_optimizer": False}],
    "finetune-bn": [
        {},
        {"statistics": "stored", "samples": "all"},
        {"statistics": "batch", "scored": 3, "keep_optimizer": False},
    ],
    "finetune-l2p": [{}, {"samples": "train"}],
    "floco": [{"endpoints": 3}, {"endpoints": 3, "tau": 0.0, "rho": 0.5}],
    "fml": [{}, {"alpha": 0.3, "beta": 0.8}],
    "fpl": [{"tau": 0.2}],
    "gpfl": [{"lam": 0.5}],
    "ifca": [{}, {"models": 3, "spread": 0.5}],
    "knn-per": [
        {"k": 3},
        {"k": 4, "scale": 2.0, "lam": 0.4},
        {"k": 4, "lam": 0.5, "distances": "summed", "votes": "softmax"},
    ],
    "l2p": [{**L2P, "iterations": 1}, {**L2P, "iterations": 1, "samples": "train"}],
    "lg-fedavg": [{}, {"layers": ["1"]}],
    "local": [{}, {"keep_optimizer": False}],
    "mofedsam": [{"rho": 0.1, "alpha": 0.3}],
    "moon": [{}, {"second": "squared", "mu": 0.3}, {"second": "none", "tau": 1.0}],
    "mrmtl": [{"lam": 0.4}, {"lam": 0.4, "keep_optimizer": False}],
    "perfedavg": [
        {"alpha": 0.1},
        {"alpha": 0.1, "order": "first"},
        {"alpha": 0.1, "order": "free", "delta": 0.01},
        {"alpha": 0.1, "statistics": "both"},
    ],
    "pfedfda": [{"shrinkage": 0.1}, {"beta": 0.5}],
    "pfedgraph": [
        {},
        {"regulariser": "models", "mu": 0.2},
        {"regulariser": "released", "mu": 0.2},
        {"graph": "shuffled", "mixed": 0.5},
    ],
    "pfedhn": [
        {"hidden": 4},
        {"hidden": 4, "layers": 1, "embedding": 3, "clip": 0.05},
        {"hidden": 4, "scored": "trained"},
    ],
    "pfedla": [{"hidden": 4, "hyper_lr": 0.1}, {"hidden": 3, "embedding": 2}],
    "pfedme": [{}, {"beta": 0.5, "steps": 2, "inner_lr": 0.05}, {"scored": "w"}],
    "q-ffl": [{"q": 2.0}],
    "scaffold": [{}, {"eta_g": 0.5}, {"divisor": "steps"}],
    "spherefed": [{}],
    "spherefed-head": [{}, {"ridge": 1.0}],
    "untrained": [{}],
    "vhl": [{"images": 3, "batch": 4, "lam": 0.5}, {"images": 3, "batch": 4, "generator_seed": 1}],
    "warm-up": [
        {"images": 1, "steps": 2, "real": 4},
        {"images": 1, "steps": 2, "real": 4, "initial": "noise"},
        {"images": 1, "steps": 2, "real": 4, "initial": "real"},
    ],
}
"""By method, or variant of it, hyper-parameters: the first of each in several worlds, the others in
one or two.
"""

STARTING = (
    *("ccvr", "fedavg", "fedl2p", "finetune", "finetune-bn", "finetune-l2p", "knn-per", "l2p"),
    "spherefed-head",
)
MODAL = {
    **dict.fromkeys(("ditto", "fedavg", "fedavgm", "fedbabu", "fedopt"), "shared"),
    **dict.fromkeys(("fedprox", "fedrep"), "shared"),
    **dict.fromkeys(("fedsac", "finetune", "local", "moon"), "shared"),
    **dict.fromkeys(("feddyn", "fediot", "mrmtl", "pfedgraph", "scaffold"), "own"),
}
"""Methods of clients that differ in modality, and whether these share a classifier."""
OF_IMAGES = {
    *("fedfa", "fedfa/c", "fedfa/plus", "fedfa/r", "fedharmo", "fedlgd", "vhl", "warm-up"),
}
NORMALISING = {"fedbn", "fedl2p", "finetune-bn", "finetune-l2p", "l2p"}
DETERMINED = {*NORMALISING, "fedfa", "fedfa/c", "fedfa/plus", "fedfa/r"}
"""Methods that need batch normalisation or convolutions, which the model with dropout has not."""
OF_SGD = {"fedamp", "fedcm", "fedgamma", "fednova", "mofedsam", "scaffold"}
REGRESSING = ("ditto", "fedavg", "fedrep")
"""Methods that are also trained on targets."""
MASKED = (
    *("ditto", "fedavg", "fedavgm", "fedbn", "fedfa", "fedfa/c", "fedfa/h", "fedfa/plus"),
    *("fedfa/r", "fedharmo", "fedprox", "fedrobust", "finetune", "local", "scaffold"),
)

TERMS: dict[str, list[World]] = {
    "cosine": [{"mu": 0.5}],
    "feddecorr": [{"beta": 0.5}, {"beta": 0.5, "scale": "paper"}],
    "fedfm": [{"first": 2, "lam": 0.5}, {"first": 1, "lam": 0.5, "loss": "squared", "lite": True}],
    "feduv": [{"variance": 0.5}],
    "mk-mmd": [
        {"mu": 0.5},
        {"mu": 0.5, "update": "periodic", "first": 2, "every": 3, "batches": 2},
        {"mu": 0.5, "update": "never", "kernels": 5, "biased": False},
        {"mu": 0.5, "convention": "divide", "normalise": False, "ridge": 0.1},
    ],
    "mmd-d": [
        {"mu": 0.5, "first": 1, "every": 2, "batches": 3, "steps": 2},
        {"mu": 0.5, "update": "step", "form": "sum"},
        {"mu": 0.5, "first": 1, "every": 2, "batches": 3, "steps": 2, "normalise": True},
    ],
}
ALTERATIONS: dict[str, list[World]] = {
    "dac-sc": [{"p": 0.7}],
    "m-mixup": [{}, {"inputs": False, "alpha": 0.5}],
    "mixstyle": [{"p": 0.7, "alpha": 0.5}],
    "mixup": [{}, {"alpha": 0.2}],
    "moex": [{"p": 0.7}, {"p": 1.0, "lam": 0.8}],
}

STAGES: dict[str, list[World]] = {
    "adaptive-clip": [{"count_noise": 0.3}, {"initial": 1.0, "quantile": 0.8, "rate": 0.5}],
    "alie": [{"share": 0.4}, {"share": 0.4, "z": 1.5}],
    "clip": [{"norm": 0.1}],
    "gaussian": [{"share": 0.4, "deviation": 0.1}],
    "label-flip": [{"share": 0.4}],
    "noise": [{"multiplier": 0.5}],
    "quantize": [{"bits": 3}],
    "random-k": [{"share": 0.2}, {"share": 0.2, "feedback": False}],
    "sign-flip": [{"share": 0.4}, {"share": 0.4, "times": 2.0}],
    "top-k": [{"share": 0.2}, {"share": 0.2, "feedback": False}],
}

AGGREGATIONS: dict[str, list[World]] = {
    "geometric-median": [{}, {"steps": 10, "nu": 0.1}],
    "krum": [{}, {"chosen": 3}],
    "median": [{}],
    "trimmed-mean": [{"share": 0.2}],
}

UNEQUAL: World = {"name": "log-normal", "speed": 1e6, "speed_sigma": 1.0, "failure": 0.1}
"""Devices of which computing takes as long as sending."""
DEVICES: dict[str, list[World]] = {
    "classes": [{"shares": [0.5, 0.5], "speeds": [1e6, 1e5], "present": 0.5}],
    "equal": [{"failure": 0.3}],
    "fedscale": [{"capacity": "capacity.json", "sample_operations": 4e3}],
    "log-normal": [{"speed": 1e6, "failure": 0.1}],
    "table": [{"path": "table.csv", "period": 0.05}],
    "zipf": [{"speed": 1e6, "present": 0.3}],
}
SELECTIONS: dict[str, list[World]] = {
    "active": [{"left_out": 0.25}],
    "by-size": [{}],
    "divfl": [{}, {"gradients": "last", "sample": 0.5}],
    "fedcs": [{"deadline": 0.004}],
    "loss-proportional": [{}, {"losses": "last"}],
    "oort": [{"exploration": 0.5, "window": 2}],
    "power-of-choice": [{"candidates": 3}, {"candidates": 3, "losses": "last"}],
    "tifl": [{"tiers": 2, "interval": 2}],
}
SERVERS: dict[str, list[World]] = {
    "asyncfeded": [{"concurrency": 3}],
    "ca2fl": [{"size": 2, "concurrency": 3}],
    "fedasync": [{"concurrency": 3}, {"concurrency": 3, "staleness": "hinge", "b": 1.0}],
    "fedbuff": [
        {"size": 2, "concurrency": 3},
        {"size": 2, "concurrency": 3, "staleness": "constant"},
    ],
}

SMALL, CIFAR, LARGE = (3, 16, 16), (3, 32, 32), (3, 64, 64)
MODELS: dict[str, list[tuple[World, Any]]] = {
    "alexnet": [
        ({"channels": [4, 6, 8, 6, 6], "hidden": 5}, LARGE),
        ({"channels": [4, 6, 8, 6, 6], "hidden": 5, "stem": "cifar", "norm": "group"}, SMALL),
        ({"channels": [4, 6, 8, 6, 6], "hidden": 5, "stem": "cifar", "norm": "layer"}, SMALL),
    ],
    "cifar-cnn": [({"hidden": 6}, CIFAR)],
    "cnn": [({"channels": [3, 4]}, SMALL), ({"channels": [3], "projection": 4}, SMALL)],
    "conv1d": [
        ({"channels": [3, 4], "kernels": [4, 3]}, (2, 9)),
        ({"channels": [4], "kernels": [3], "norm": "group"}, (2, 9)),
        ({"channels": [3], "kernels": [2], "norm": None}, (2, 9)),
    ],
    "convnet": [({"width": 4, "depth": 2}, SMALL)],
    "densenet100": [({}, SMALL), ({"stem": "imagenet"}, CIFAR)],
    "digits-cnn": [({}, SMALL), ({"norm": "group"}, SMALL), ({"norm": "layer"}, SMALL)],
    "efficientnet-b0": [({}, CIFAR)],
    "fusion": [
        ({"features": 4, "channels": [2], "kernel": 3, "hidden": 4}, "sensors"),
        (
            {"features": 4, "channels": [2], "kernel": 3, "hidden": 4, "classifier": "own"},
            "sensors",
        ),
    ],
    "image-text": [
        ({k: v for k, v in IMAGE_TEXT.items() if k != "name"}, "two"),
        ({**{k: v for k, v in IMAGE_TEXT.items() if k != "name"}, "classifier": "own"}, "two"),
    ],
    "lenet": [({}, SMALL), ({"enlarge": 2, "projection": 4}, SMALL)],
    "logistic": [({}, (6,)), ({"zero": True}, (6,))],
    "lstm": [({"tokens": TOKENS, "embedding": 3, "hidden": 4}, "text")],
    "matrix-factorisation": [({"tokens": TOKENS, "width": 3}, "text")],
    "mlp": [
        ({"hidden": [5, 4]}, (6,)),
        ({"hidden": [5], "norm": "batch"}, (6,)),
        ({"hidden": [6], "norm": "group"}, (6,)),
        ({"hidden": [5], "norm": "layer"}, (6,)),
    ],
    "mobilenet-v3": [({}, CIFAR), ({"stem": "imagenet"}, CIFAR)],
    "neural-lm": [({"tokens": TOKENS, "context": 3, "embedding": 3, "hidden": 4}, "text")],
    "resnet-cifar": [({"width": 4}, SMALL), ({"width": 4, "blocks": 2}, SMALL)],
    "resnet18": [({}, SMALL), ({"stem": "imagenet", "projection": 4, "norm": "group"}, CIFAR)],
    "resnet50": [({}, SMALL), ({"stem": "imagenet", "projection": 4, "norm": "layer"}, CIFAR)],
    "swin-t": [({}, CIFAR), ({"stem": "cifar", "stochastic_depth": 0.5}, SMALL)],
    "text-cnn": [({"tokens": TOKENS, "width": 3, "kernels": [1, 2], "channels": 2}, "text")],
    "text-transformer": [({"tokens": TOKENS, "width": 4, "heads": 2, "hidden": 5}, "text")],
    "two-layer": [({"hidden": 4}, (6,)), ({"hidden": 4, "head": "logits"}, (6,))],
    "unet": [
        ({"width": 2, "levels": 2}, "masks"),
        ({"width": 2, "levels": 1, "norm": "group"}, "masks"),
    ],
    "vit": [({"dim": 4, "depth": 2, "heads": 2}, SMALL), ({"dim": 4, "dropout": 0.3}, SMALL)],
}

SETTINGS: dict[str, World] = {
    "adamw": {"training": {"optimizer": "adamw", "lr": 0.01}},
    "adamw decays": {"training": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.3}},
    "plain sgd": {"training": {"momentum": 0.0, "weight_decay": 0.0}},
    "constant": {"training": {"schedule": "constant"}},
    "cosine": {"training": {"schedule": "cosine"}},
    "step": {"training": {"schedule": "step", "lr_decay": 0.5, "lr_decay_every": 2, "rounds": 4}},
    "drops": {"training": {"schedule": "drops", "lr_decay": 0.5, "rounds": 8, "local_epochs": 1}},
    "steps": {"training": {"local_epochs": None, "local_steps": 3}},
    "no samples": {"training": {"local_epochs": None, "local_steps": 3}, "sizes": (13, 0, 9)},
    "neither epochs nor steps": {"training": {"local_epochs": None}},
    "drop last": {"training": {"drop_last": True}},
    "few": {"training": {"participation": 0.1}},
    "stragglers kept": {"training": {"stragglers": 0.6, "local_epochs": 4, "participation": 1.0}},
    "stragglers of steps": {
        "training": {
            "stragglers": 0.6,
            "local_epochs": None,
            "local_steps": 5,
            "participation": 1.0,
        }
    },
    "stragglers dropped": {"training": {"stragglers": 0.5, "partial_work": "dropped"}},
    "all but one dropped": {"training": {"stragglers": 0.9, "partial_work": "dropped"}},
    "seldom evaluated": {"training": {"evaluate_every": 2}},
    "some evaluated": {"training": {"evaluate_clients": 2}},
    "another seed": {"seed": 6},
    "tested on all": {"test": "global"},
    "tested on both": {"test": "reweighted"},
    "some of each class": {"train_on": 1},
    "unseen": {"away": True},
    "crop and flip": {
        "model": CNN,
        "data": "images",
        "training": {"augmentation": "crop-flip"},
    },
    "flip, turn and rotate": {
        "model": CNN,
        "data": "images",
        "training": {"augmentation": "flip-turn-rotate30"},
    },
    "crop and flip of wide images": {
        "model": CNN,
        "data": "wide",
        "training": {"augmentation": "crop-flip"},
    },
    "half": {"model": CNN, "data": "images", "training": {"normalisation": "half"}},
    "not normalised": {"model": CNN, "data": "images", "training": {"normalisation": "none"}},
    "channels last": {
        "model": CNN,
        "data": "images",
        "training": {"memory_format": "channels-last"},
    },
    "nesterov": {"training": {"nesterov": True}},
    "clipped": {"training": {"clip_norm": 0.2}},
    "warm start": {"training": {"warmup_rounds": 3}},
    "by steps": {"training": {"schedule": "cosine", "schedule_by": "steps", "warmup_rounds": 2}},
    "smoothed": {"training": {"label_smoothing": 0.1}},
    "balanced classes": {"training": {"class_weights": "balanced"}},
    "uniform": {"training": {"weighting": "uniform"}, "sizes": (1, 9, 4)},
    "kept optimizer": {"training": {"keep_optimizer": True}},
    "adam": {"training": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}},
    "virtual images": {"model": CNN, "data": "images", "images": 1},
    "normalised by training samples": {"data": "open", "away": True},
    "float32": {"training": {"precision": "float32"}},
    "mixed": {"training": {"precision": "mixed"}},
    "crop and flip of one of two inputs": {
        "model": {**IMAGE_TEXT, "classifier": "shared"},
        "data": "two",
        "modal": "shared",
        "training": {"augmentation": "crop-flip"},
    },
}
"""Of FedAvg on numbers, what differs from `TRAINING`."""

BEYOND = ("adamw", "steps", "stragglers kept", "drop last")
"""Settings in which every method is looked at."""


SETTINGS_OF_TRAINING = ("keep_optimizer", "weighting")
"""Keys of a method's worlds that are not its own."""


def runs() -> Iterator[tuple[str, World]]:
    """All runs."""
    base = {"data": "numbers", "model": MLP, "method": {"name": "fedavg"}, "training": TRAINING}
    for name, changed in SETTINGS.items():
        training = {**TRAINING, **changed.get("training", {})}
        yield f"core: {name}", {**base, **changed, "training": training}
    for name, several in METHODS.items():
        yield from _of_method(name, several)
    for name, several in TERMS.items():
        for number, values in enumerate(several):
            yield from _of_term(name, number, values)
    for name, several in ALTERATIONS.items():
        for number, values in enumerate(several):
            yield from _of_alteration(name, number, values)
    for name, several in STAGES.items():
        for number, values in enumerate(several):
            yield from _of_stage(name, number, values)
    for name, several in AGGREGATIONS.items():
        for number, values in enumerate(several):
            yield from _of_aggregation(name, number, values)
    yield from _of_participation()
    for name, pairs in MODELS.items():
        for number, (values, data) in enumerate(pairs):
            yield f"model {name}: {number}", _of_model(name, values, data)


def _of_method(name: str, several: list[World]) -> Iterator[tuple[str, World]]:
    method = name.partition("/")[0]
    about, first = f"method {name}", {"name": method, **several[0]}
    common: World = {"method": first, "training": PLAIN, **_served(name)}
    plain, normed = _on_numbers(name)
    images = {"data": "images", "model": CNN}
    yield f"{about}: plain", {**common, **plain, "training": TRAINING, "away": name != "l2p"}
    yield f"{about}: images", {**common, **images, "training": TRAINING}
    if name not in DETERMINED:
        yield f"{about}: dropout", {**common, "data": "images", "model": VIT}
    if name in OF_IMAGES:
        yield f"{about}: wide", {**common, "data": "wide", "model": CNN}
    steps = {**TRAINING, "local_epochs": None, "local_steps": 3, "drop_last": True}
    adamw = {} if name in OF_SGD else {"optimizer": "adamw", "lr": 0.01}
    yield f"{about}: steps", {**common, **normed, "training": {**steps, **adamw}}
    late = {**PLAIN, "local_epochs": 3, "stragglers": 0.5}
    yield f"{about}: stragglers", {**common, **normed, "training": late}
    for number, values in enumerate(several[1:], 1):
        settings = {key: value for key, value in values.items() if key in SETTINGS_OF_TRAINING}
        keys = {key: value for key, value in values.items() if key not in settings}
        short = {
            **common,
            "method": {"name": method, **keys},
            "training": {**TRAINING, "rounds": 2, **settings},
        }
        yield f"{about}: {number} images", {**short, **images}
        if name not in OF_IMAGES:
            yield f"{about}: {number} plain", {**short, **plain}
    if name == "cfl":  # A cluster of two is split.
        split = {"name": name, "after": 1, "eps1": 9.0, "eps2": 0.0}
        yield f"{about}: two", {**common, **plain, "method": split, "sizes": (13, 5)}
    if name == "fedproto":  # One of two clients takes part; it has no sample of the third class.
        half = {**PLAIN, "participation": 0.5}
        yield f"{about}: half", {**common, **plain, "training": half, "sizes": (3, 2)}
    if name in STARTING:
        yield f"{about}: start", {**common, **images, "start": True}
    if name in MODAL:
        model = {**IMAGE_TEXT, "classifier": MODAL[name]}
        yield (
            f"{about}: modalities",
            {**common, "data": "two", "model": model, "modal": MODAL[name]},
        )
        if name in ("fedavg", "fedsac", "scaffold"):  # Rounds in which a modality has no client.
            few = {**TRAINING, "participation": 0.3}
            yield (
                f"{about}: few modalities",
                {**common, "data": "two", "model": model, "modal": MODAL[name], "training": few},
            )
    if name in REGRESSING:
        targets = {"data": "targets", "model": MLP, "task": "regression"}
        yield f"{about}: targets", {**common, **targets, "training": TRAINING, "away": True}
    if name in MASKED:
        blocks = {key: value for key, value in first.items() if key != "layers"}
        masks = {"data": "masks", "model": UNET, "task": "segmentation"}
        yield f"{about}: masks", {**common, **masks, "method": blocks}
        if name == "fedfa/h":  # Which compares what the last of several blocks gives.
            deep = {**UNET, "levels": 2}
            yield f"{about}: deep masks", {**common, **masks, "method": blocks, "model": deep}


def _served(name: str) -> World:
    return {"server": 11} if name in ("feddf", "fediot", "fedlaw") else {}


def _on_numbers(name: str) -> tuple[World, World]:
    """Data and model without and with batch normalisation, of images where those are needed."""
    if name in OF_IMAGES:
        return ({"data": "images", "model": CNN},) * 2
    normed = {"data": "numbers", "model": NORMED}
    return (normed if name in NORMALISING else {"data": "numbers", "model": MLP}), normed


def _of_term(name: str, number: int, values: World) -> Iterator[tuple[str, World]]:
    for model, data, layers in ((MLP, "numbers", ["1"]), (CNN, "images", ["2", "6"])):
        keys = values if name in ("feddecorr", "fedfm", "feduv") else {"layers": layers, **values}
        for method in ("fedavg", "fedprox" if values.get("lite") else "ditto"):
            world = {"data": data, "model": model, "method": {"name": method}, "training": TRAINING}
            yield (
                f"term {name}: {number} {method} {data}",
                {
                    **world,
                    "terms": [{"name": name, **keys}],
                },
            )


def _of_alteration(name: str, number: int, values: World) -> Iterator[tuple[str, World]]:
    keys = values if name == "mixup" else {"layers": ["0", "4"], **values}
    for method in ("fedavg", "ditto", "fedrep"):
        given = {"name": method, **({"head_epochs": 1} if method == "fedrep" else {})}
        yield (
            f"alteration {name}: {number} {method}",
            {
                **{"data": "images", "model": CNN, "method": given, "training": TRAINING},
                "alterations": [{"name": name, **keys}],
            },
        )
    yield (
        f"alteration {name}: {number} masks",
        {
            **{"data": "masks", "model": UNET, "method": {"name": "fedavg"}, "training": PLAIN},
            "task": "segmentation",
            "alterations": [
                {"name": name, **keys, **({} if name == "mixup" else {"layers": BLOCKS})}
            ],
        },
    )


def _of_stage(name: str, number: int, values: World) -> Iterator[tuple[str, World]]:
    """Noise stands behind each of the two clips."""
    stage = {"name": name, **values}
    befores = [{"name": "clip", "norm": 0.1}, {"name": "adaptive-clip", "count_noise": 0.3}]
    wires = [[before, stage] for before in befores] if name == "noise" else [[stage]]
    training = {**TRAINING, "weighting": "uniform"}
    for method, wire in itertools.product(("fedavg", "scaffold", "ditto"), wires):
        behind = f" {wire[0]['name']}" if len(wire) > 1 else ""
        yield (
            f"stage {name}: {number}{behind} {method}",
            {
                **{"data": "numbers", "model": MLP, "method": {"name": method}},
                **{"training": training, "wire": wire},
            },
        )


def _of_aggregation(name: str, number: int, values: World) -> Iterator[tuple[str, World]]:
    training = {**TRAINING, "participation": 1.0}
    for method in ("fedavg", "scaffold", "ditto"):
        yield (
            f"aggregation {name}: {number} {method}",
            {
                **{"data": "numbers", "model": MLP, "method": {"name": method}},
                **{"training": training, "aggregation": [{"name": name, **values}]},
            },
        )


def _of_participation() -> Iterator[tuple[str, World]]:
    """Devices with a deadline and over-selection; selections; asynchronous servers."""
    waiting = {**TRAINING, "rounds": 3, "participation": 0.5}
    timed = {**waiting, "over_selection": 1.5, "deadline": 0.02}
    kinds = (
        ("devices", DEVICES, timed),
        ("selection", SELECTIONS, waiting),
        ("asynchronous", SERVERS, {**waiting, "rounds": 4}),
    )
    for key, components, training in kinds:
        for name, several in components.items():
            for (number, values), method in itertools.product(
                enumerate(several), ("fedavg", "ditto")
            ):
                base: World = {"data": "numbers", "model": MLP, "method": {"name": method}}
                added = {"devices": [UNEQUAL], key: [{"name": name, **values}]}
                yield f"{key} {name}: {number} {method}", {**base, **added, "training": training}


BLOCKS = ["pool1"]
"""A block of the U-Net."""


RATES = {"efficientnet-b0": 1e-5}
"""Of models whose running statistics explode, at .01, after batches of three."""


def _of_model(name: str, values: World, data: Any) -> World:
    world = {
        "model": {"name": name, **values},
        "method": {"name": "fedavg"},
        "data": data,
        "training": {**PLAIN, "rounds": 1, "batch_size": 3, "lr": RATES.get(name, 0.01)},
        "sizes": (4,),
    }
    if data in ("two", "sensors"):
        world["modal"] = values.get("classifier", "shared")
        world["sizes"] = SIZES
    if data == "masks":
        world["task"] = "segmentation"
    return world


OF_CLIENT = {"shared": (0, 0, 1, 1, 2), "own": (0, 0, 1, 1, 1)}
"""By classifier: clients of the first input (0), the second (1), or both (2)."""


def table(world: World) -> pd.DataFrame:
    """Who holds which sample; clients 1 and 2 have no validation samples unless a method wants."""
    rows, first = [], 0
    validated = world["method"]["name"] in ("fedfomo", "fedl2p", "l2p")
    sizes = world.get("sizes", SIZES)
    held = [*sizes, *([7] if world.get("away") else [])]
    for client, size in enumerate(held):
        val = 4 if validated or client not in (1, 2) else 0
        counts = {"train": size, "val": val, "test": 6}
        if client == 0:
            counts["server"] = world.get("server", 0)
        for split, count in counts.items():
            rows += [(first + i, client, split) for i in range(count)]
            first += count
    found = pd.DataFrame(rows, columns=["sample", "client", "split"])
    if world.get("away"):
        found["unseen"] = found["client"] == len(held) - 1
    if "modal" in world:
        found["modality"] = np.array(OF_CLIENT[world["modal"]], np.int32)[found["client"]]
    return found


def arrays(data: Any, table: pd.DataFrame) -> dict[str, Any]:
    """Inputs and labels of every sample of a table, drawn anew; ``data``: a name, or a shape."""
    draw = np.random.default_rng(11)
    client, n = table["client"].to_numpy(), len(table)
    y = draw.integers(0, CLASSES, n)
    classes = tuple("abc")
    if data == "masks":
        mask = draw.random((n, 4, 4)) < 0.2 + 0.1 * client[:, None, None]
        x = mask[:, None] + draw.normal(0, 0.3, (n, 1, 4, 4)) + client[:, None, None, None] / 4
        return {
            "x": x,
            "y": np.zeros_like(y),
            "mask": mask.astype(np.uint8),
            "classes": classes[:2],
            "normalisation": {"scale": 0.5, "mean": 0.25, "sd": 2.0},
        }
    if data == "targets":
        x = draw.normal(client[:, None] / 2, 1.5, (n, 6))
        open_ = {"scale": 1.0, "mean": None, "sd": None}
        return {
            "x": x,
            "y": np.zeros_like(y),
            "target": 50 + 20 * (np.sin(x[:, 0]) + x[:, 1] + draw.normal(0, 0.3, n)),
            "classes": ("target",),
            "normalisation": open_,
            "normalisations": {"target": open_},
        }
    tokens = (2 * y[:, None] + draw.integers(0, 3, (n, 4))) % TOKENS
    if data == "text":
        return {"x": tokens, "y": y, "classes": classes, "normalisation": None}
    shapes = {
        "numbers": (6,),
        "open": (6,),
        "images": (1, 4, 4),
        "wide": (1, 4, 6),
        "two": (1, 4, 4),
        "sensors": (2, 9),
    }
    shape = shapes.get(data, data) if isinstance(data, str) else data
    low = (y - client / 2).reshape(-1, *[1] * len(shape))
    x = low + draw.normal(0, 1.5, (n, *shape))
    normalisation: dict[str, Any] = {"scale": 0.5, "mean": 0.25, "sd": 2.0}
    if data == "open":
        normalisation = {"scale": 0.5, "mean": None, "sd": None}
    found = {"x": x, "y": y, "classes": classes, "normalisation": normalisation}
    if data == "two":
        kinds = (("image", "x", (1, 4, 4)), ("text", "text", (4,), TOKENS))
        return {**found, "text": tokens, "modalities": kinds}
    if data == "sensors":
        kinds = (("acc", "x", (2, 9)), ("gyro", "input_gyro", (2, 9)))
        more = {"input_gyro": x[::-1].copy() + 0.3}
        return {
            **found,
            "inputs": more,
            "normalisations": {"input_gyro": normalisation},
            "modalities": kinds,
        }
    return found


SCHEMES: dict[str, list[World]] = {
    "client-dirichlet": [{"clients": 9, "alpha": 0.3}],
    "dirichlet": [
        {"clients": 9, "alpha": 0.3},
        {"clients": 9, "alpha": 0.1, "min_samples": 40},
        {"clients": 5, "alpha": 0.5, "min_per_class": 3, "seed": 2},
        {"clients": 9, "alpha": 0.1, "min_per_class": 2, "redraws": 1},
    ],
    "domain": [
        {"clients_per_domain": 3},
        {"clients_per_domain": 2, "equal_domains": True},
    ],
    "domain-dirichlet": [
        {"clients_per_domain": 3, "alpha": 0.3},
        {"clients_per_domain": 2, "alpha": 0.3, "equal_clients": True},
        {"clients_per_domain": 2, "alpha": 0.1, "equal_domains": True, "min_samples": 30},
        {"clients_per_domain": 2, "alpha": 0.5, "min_per_class": 2},
        {"clients_per_domain": 3, "alpha": 0.1, "min_per_class": 1, "redraws": 1},
    ],
    "dominant": [{"clients": 9}, {"clients": 6, "dominant_classes": 2, "share": 0.7}],
    "file": [{}],
    "homogeneous": [{"clients": 9}],
    "natural": [{}],
    "pathological": [
        {"clients": 9, "classes_per_client": 2},
        {"clients": 7, "classes_per_client": 3},
        {"clients": 10, "classes_per_client": 2, "dealt": "blocks"},
    ],
    "power-law": [{"clients": 9}, {"clients": 6, "classes_per_client": 3, "sigma": 1.0}],
}
SPLITS: list[World] = [
    {"seed": 3, "val": 0.2, "test": 0.3},
    {"server": 0.25, "unseen": 2},
    {"unseen": 0.3, "modalities": [4, 5]},
    {"val": "published", "test": "published"},
]
"""What all schemes but ``file`` take besides."""

DATA_SETS: dict[str, list[World]] = {
    "chem97": [{}, {"clients": "school", "min_samples": 4}, {"target": "points"}],
    "cifar10-c": [
        {},
        {"severities": [2, 5], "corruptions": ["fog", "snow"]},
        {"photographs": 7, "severities": [1, 3, 5], "pixels": 28},
    ],
    "cifar100": [{}, {"labels": "coarse"}],
    "digits-five": [{}, {"parts": 2}],
    "domainnet": [{}, {"train_share": 0.5}],
    "movielens": [{}, {"features": "film"}],
    "prostate-mri": [{}, {"task": "classification"}, {"empty": True, "seed": 1}],
    "real-digits": [{}, {"images": 20}],
    "roles": [{}, {"blocks": True}],
    "synthetic": [
        {},
        {"alpha": 0.5, "beta": 0.5, "samples": 200},
        {"generator": "one-layer", "samples": None, "clients": 6, "alpha": 1.0, "beta": 1.0},
        {"iid": True, "clients": 4, "samples": 100, "seed": 3, "temperature": 1.0},
    ],
    "table": [
        {"drop": ["who", "part"]},
        {"standardise": False, "drop": ["b", "who", "part"]},
        {"client": "who", "split": "part"},
        {"categorical": ["who", "part"]},
    ],
    "images": [{}, {"pixels": 5}],
    "leaf": [{}, {"text": "words", "vocabulary": 3, "length": 5}, {"text": "characters"}],
    "arrays": [{}, {"standardise": False}],
}
"""Keys beside those of the generator; a set that is not here has one world."""


def samples() -> dict[str, Any]:
    """Samples that every scheme can deal to nine clients."""
    draw = np.random.default_rng(11)
    labels = draw.integers(0, 10, 600)
    return {
        "x": draw.normal(labels[:, None] / 5, 1.0, (600, 4)),
        "y": labels,
        "domain": draw.choice([0, 1, 2], 600, p=[0.5, 0.3, 0.2]),
        "client": np.arange(600) % 9,
        "split": draw.choice([0, 0, 0, 1, 2], 600),
        "classes": tuple("0123456789"),
        "domains": ("p", "q", "r"),
        "normalisation": {"scale": 1.0, "mean": 0.0, "sd": 1.0},
    }
