"""Gradient inversion: what can be seen of a client's images in the gradient that it sends.

J. Geiping, H. Bauermeister, H. Dröge, M. Moeller. Inverting Gradients: How easy is it to break
privacy in federated learning? NeurIPS 2020. arXiv:2003.14053.

The attacker knows the model, the labels and the mean gradient of one batch, and looks for images
whose gradient has the same direction. It minimises 1 - cosine + tv x total variation, with Adam on
the signs of the gradient, from noise, within the range of values that the client's images have. As
in the released code, the rate falls to a tenth after 3/8, 5/8 and 7/8 of the steps. Batch
normalisation is in evaluation mode, a weaker defence than batch statistics.

Runs whose trace ``local`` holds images that clients train on in place of their own (FedLGD) are
attacked on these too. PSNR and SSIM then compare what is found with the virtual images. `leak` is
the highest PSNR between what is found and any of the client's real images of the class, which is
what a person would mind; on real data it is defined in the same way. LPIPS (R. Zhang et al. CVPR
2018) is reported where torchvision's weights of AlexNet are in PyTorch's cache.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled
from fl.analyses.membership import models
from fl.api import trees
from fl.api.trees import Tree
from fl.base import rng
from fl.base.errors import FedloomError, optional_package
from fl.base.fields import Bound, Count, Index, NonNegative, Positive, Seed
from fl.blocks.plotting import Look, as_picture, axes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fl.engine.simulation import Simulation

LOCAL = "local"
"""The trace of images that clients train on, [rounds, clients, classes x kept, ...]."""
FALLS = (3 / 8, 5 / 8, 7 / 8)
ALEXNET = "alexnet-owt-7be5be79.pth"
"""The name under which torchvision keeps its weights of AlexNet."""

Distance = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Inversion:
    """Reconstruction of images from gradients.

    Attributes:
        client: First attacked client.
        clients: Number of attacked clients.
        methods: Entries whose runs are attacked; an empty list: all entries of the study.
        batch: Number of images in the batch, of the first classes, at most 32.
        model: Attacked model: of the `first` round, or the `final` model.
        steps: Number of steps of the attack.
        lr: Learning rate of Adam.
        tv: Weight of total variation.
        seed: Seed of all random numbers.
    """

    client: Index = 0
    clients: Count = 1
    methods: tuple[str, ...] = ()
    batch: Annotated[int, Bound(low=1, high=32)] = 4
    model: Literal["first", "final"] = "final"
    steps: Count = 1000
    lr: Positive = 0.1
    tv: NonNegative = 1e-2
    seed: Seed = 0

    weights: ClassVar = True
    """It reads the runs' final weights."""
    one_input: ClassVar = True

    def check(self, shape: tuple[int, ...], clients: int | None) -> None:
        """Refuse (`FedloomError`) what are no images, and clients that are not there."""
        if len(shape) != 3:
            raise FedloomError(f"inputs have shape {shape}. Allowed: images")
        last = self.client + self.clients - 1
        if clients is not None and last >= clients:
            request = f"client: is {self.client}, clients: is {self.clients}"
            raise FedloomError(
                f"{request}, but there is no client {last}. Allowed: 0 to {clients - 1}"
            )

    def read(self, runs: Sequence[Source]) -> Result:
        """Return PSNR, SSIM and leak of every attacked client, and the images side by side."""
        named = [run for run in runs if not self.methods or run.method in self.methods]
        shown = {run.run for run in first_seeds(named)}
        rows: list[TableRow] = []
        panels: list[Panel] = []
        with optional_package("inversion"):
            # Before hours of work.
            from skimage.metrics import structural_similarity  # noqa: F401
        distance = perceptual()
        for run, client in itertools.product(named, range(self.client, self.client + self.clients)):
            simulation = run.simulation()
            variables = self._variables(run, simulation, client)
            for data, x, y in self._batches(run, simulation, client):
                guess = inverted(self, variables, simulation, x, y)
                scores = scored(simulation, client, x, guess, y, distance)
                rows.append({**keys(run), "data": data, "client": client, **scores})
                if run.run in shown:
                    panels.append(self._panel(run, simulation, client, data, x, guess))
        names = {"psnr": "PSNR", "ssim": "SSIM", "leak": "leak (PSNR to real)"}
        if distance:
            names["lpips"] = "LPIPS"
        return Result(
            table=tabled(runs, rows, "data", "client", *names),
            columns=names,
            caption=(
                f"Gradient inversion of one batch of {self.batch} images of a client, "
                f"{self.steps} steps on the {self.model} model. Low values mean privacy."
            ),
            note=(
                "PSNR and SSIM compare the reconstructed images with the training images. Leak: "
                "the highest PSNR to a real image of the class, mean over the batch."
            ),
            panels=tuple(panels),
            figure="Training images (top) and their reconstructions by the attack (bottom); run of "
            "the lowest seed.",
            notes=() if distance else (f"LPIPS was not measured: there is no {_alexnet()}",),
        )

    def _variables(self, run: Source, simulation: Simulation, client: int) -> Tree:
        if self.model == "first":
            first = simulation.network.init(rng.torch_seed(run.seed, "init"))
            return trees.to(first, simulation.arrays.device)
        # Participants are in ascending order, so the first client + 1 of them have this one.
        for _, owner, variables in models(run.weights(), simulation, client + 1):
            if owner == client:
                return variables
        raise FedloomError(
            f"client: is {self.client}, clients: is {self.clients}, and the run has no client "
            f"{client}. Allowed: those that take part"
        )

    def _batches(
        self, run: Source, simulation: Simulation, client: int
    ) -> list[tuple[str, Tensor, Tensor]]:
        """Return the attacked images, normalised, and their labels, one class after another."""
        samples = simulation.client_data.samples["train"][client]
        if len(samples) < self.batch:
            raise FedloomError(
                f"batch: is {self.batch}, and client {client} has {len(samples)} training "
                f"samples. Allowed: at most {len(samples)} there"
            )
        labels = simulation.arrays.labels_of(samples)
        order = rng.generator(self.seed, "inversion").permutation(len(samples))
        index = torch.from_numpy(samples[order[spread(labels[order])][: self.batch]])
        batches = [("real", simulation.arrays.inputs(index), simulation.arrays.labels(index))]
        traces = run.traces()
        if LOCAL in traces:
            images = traces[LOCAL][-1, client]
            classes = simulation.classes
            y = torch.arange(classes).repeat_interleave(len(images) // classes)
            if len(images) < self.batch:
                raise FedloomError(
                    f"batch: is {self.batch}, and the run keeps {len(images)} virtual images of a "
                    f"client. Allowed: at most {len(images)}, or more of them (kept)"
                )
            chosen = torch.from_numpy(spread(y.numpy())[: self.batch].copy())
            device = simulation.arrays.device
            batches.append(("virtual", images[chosen].to(device), y[chosen].to(device)))
        return batches

    def _panel(
        self, run: Source, simulation: Simulation, client: int, data: str, x: Tensor, guess: Tensor
    ) -> Panel:
        pixels = simulation.arrays.pixels
        rows = [np.asarray(pixels(images).clamp(0, 1)) for images in (x, guess)]
        alt = f"{len(x)} {data} images of client {client}, and below what was found of them"
        return Panel(
            run.setting,
            run.method,
            f"{data} data, client {client}",
            f"{alt}, seed {run.seed}.",
            side_by_side(rows),
        )


def scored(
    simulation: Simulation,
    client: int,
    x: Tensor,
    guess: Tensor,
    y: Tensor,
    distance: Distance | None,
) -> dict[str, float]:
    """PSNR, SSIM, leak and LPIPS of what the attack makes of images x [n, ...] with labels y."""
    samples = torch.from_numpy(simulation.client_data.samples["train"][client])
    labels, pixels = simulation.arrays.labels(samples).cpu(), simulation.arrays.pixels
    real = pixels(simulation.arrays.inputs(samples)).clamp(0, 1)
    truth, guess = pixels(x).clamp(0, 1), pixels(guess).clamp(0, 1)
    pairs = list(zip(truth, guess, strict=True))
    leaks = [
        max((psnr(image, guessed) for image in real[labels == label]), default=float("nan"))
        for guessed, label in zip(guess, y.cpu(), strict=True)
    ]
    scores = {
        "psnr": float(np.mean([psnr(*pair) for pair in pairs])),
        "ssim": float(np.mean([ssim(*pair) for pair in pairs])),
        "leak": float(np.mean(leaks)),
    }
    return {**scores, "lpips": distance(truth, guess)} if distance else scores


def spread(labels: np.ndarray) -> np.ndarray:
    """Places in an order that goes round the classes: the first of each, the second of each, ..."""
    class_counts: dict[int, int] = {}
    turn = []
    for label in labels.tolist():
        turn.append(class_counts.get(label, 0))
        class_counts[label] = turn[-1] + 1
    return np.lexsort((labels, np.array(turn)))


def gradient(
    variables: Tree, simulation: Simulation, x: Tensor, y: Tensor, nested: bool
) -> list[Tensor]:
    """Return the gradient of the batch's mean cross-entropy, by parameter.

    Args:
        variables: Parameters and buffers of the attacked model.
        simulation: The run's simulation, for its network.
        x: Inputs, [samples, ...].
        y: Labels, [samples].
        nested: Whether the gradient can be differentiated with respect to x.
    """
    params = {name: p.detach().requires_grad_() for name, p in variables["params"].items()}
    output = simulation.network.eval(params, variables["buffers"], x)
    loss = F.cross_entropy(output.outputs, y)
    return list(torch.autograd.grad(loss, list(params.values()), create_graph=nested))


def cosine_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """1 - cosine of two gradients, each as one vector."""
    pairs = list(zip(a, b, strict=True))
    inner = torch.stack([(r * s).sum() for r, s in pairs]).sum()
    lengths = [
        torch.stack([t.square().sum() for t in gradient]).sum().sqrt() for gradient in (a, b)
    ]
    return 1 - inner / (lengths[0] * lengths[1]).clamp(min=1e-30)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, down plus across."""
    down, across = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
    return down.abs().mean() + across.abs().mean()


def inverted(
    attack: Inversion, variables: Tree, simulation: Simulation, x: Tensor, y: Tensor
) -> Tensor:
    """The images that the attack finds for the gradient of a batch."""
    target = gradient(variables, simulation, x, y, nested=False)
    draw = torch.Generator().manual_seed(rng.torch_seed(attack.seed, "inversion"))
    guess = torch.randn(x.shape, generator=draw, dtype=torch.float64).to(x)
    box = [x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)]
    guess.requires_grad_()
    adam = torch.optim.Adam([guess], lr=attack.lr)
    falls = [int(attack.steps * share) for share in FALLS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, falls, gamma=0.1)
    best, smallest_loss = guess.detach().clone(), torch.full((), torch.inf, device=x.device)
    for _ in range(attack.steps):
        distance = cosine_distance(gradient(variables, simulation, guess, y, nested=True), target)
        loss = distance + attack.tv * total_variation(guess)
        # Not by `if`, for which the host would wait for a GPU in every step.
        better = loss.detach() < smallest_loss
        best, smallest_loss = (
            torch.where(better, guess.detach(), best),
            loss.detach().where(better, smallest_loss),
        )
        [slope] = torch.autograd.grad(loss, [guess])
        guess.grad = slope.sign()
        adam.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(*box)
    return best


def psnr(truth: Tensor, guess: Tensor) -> float:
    """10 log10 (1 / mean squared error) of images from 0 to 1, decibels; at most 100."""
    error = float((truth - guess).square().mean())
    return 100.0 if error < 1e-10 else float(-10 * np.log10(error))


def ssim(truth: Tensor, guess: Tensor) -> float:
    """Structural similarity of two images [channels, height, width] from 0 to 1.

    Z. Wang et al. Image Quality Assessment. IEEE Transactions on Image Processing 2004.
    """
    from skimage.metrics import structural_similarity

    window = min(7, *truth.shape[1:])
    window -= 1 - window % 2
    measure: Any = structural_similarity
    similarity = measure(
        truth.numpy(), guess.numpy(), win_size=window, data_range=1.0, channel_axis=0
    )
    return float(similarity)


def _alexnet() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / ALEXNET


def perceptual() -> Distance | None:
    """LPIPS of two batches [n, channels, height, width] from 0 to 1, the mean over the batch.

    Returns:
        None where AlexNet's weights are not on this machine; they are never fetched.

    Raises:
        FedloomError: If their file cannot be read.
    """
    if not _alexnet().is_file():
        return None
    from fl.pytorch.vision import torchvision  # noqa: F401 - it cannot be imported alone everywhere

    with optional_package("LPIPS"):
        import lpips  # isort: skip

    with warnings.catch_warnings():
        # lpips calls torchvision by names that torchvision warns of.
        warnings.simplefilter("ignore", UserWarning)
        try:
            network = lpips.LPIPS(net="alex", verbose=False).double()
        except Exception as error:
            raise FedloomError(
                f"LPIPS: {_alexnet()} cannot be read ({error}). Allowed: torchvision's weights of "
                "AlexNet, or no such file"
            ) from error

    @torch.no_grad()
    def distance(truth: Tensor, guess: Tensor) -> float:
        coloured = [images.double().expand(-1, 3, -1, -1) for images in (truth, guess)]
        first, second = (2 * F.interpolate(images, (64, 64)) - 1 for images in coloured)
        return float(network(first, second).mean())

    return distance


@as_picture
def side_by_side(look: Look, rows: Sequence[np.ndarray]) -> Figure:
    """Rows of images [n, channels, height, width] from 0 to 1, one row below the other."""
    figure, axes = axes_of(0.4 + 3.7 * len(rows) / max(4, len(rows[0])))
    lines = [np.concatenate(list(np.moveaxis(row, 1, -1)), axis=1) for row in rows]
    grid = np.concatenate(lines, axis=0)
    grid = np.repeat(grid, 3, axis=2) if grid.shape[2] == 1 else grid[..., :3]
    axes.imshow(grid, interpolation="nearest")
    axes.set_axis_off()
    return figure
