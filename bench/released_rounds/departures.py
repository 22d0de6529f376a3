"""Where PFLlib's code departs from a method's paper, and what takes its place.

Each reason says what the released code does. A comparison replaces all of a method's departures.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.released_rounds.edits import CLIENTS, SERVERS, Departure, Edit

DEPARTURES: Mapping[str, tuple[Departure, ...]] = {
    "moon": (
        Departure(
            "the last model is in training mode",
            (
                Edit(
                    CLIENTS + "clientmoon.py",
                    "self.old_model = copy.deepcopy(self.model)",
                    "self.old_model = copy.deepcopy(self.model).eval()",
                ),
            ),
        ),
        Departure(
            "the shared model is in training mode",
            (
                Edit(
                    CLIENTS + "clientmoon.py",
                    "self.global_model = model\n",
                    "self.global_model = model.eval()\n",
                ),
            ),
        ),
    ),
    "fedrep": (
        Departure(
            "the body's pass goes on from the running statistics that the head's pass has moved",
            (
                Edit(
                    CLIENTS + "clientrep.py",
                    "        max_local_epochs = self.local_epochs\n",
                    "        for own, sent in zip(self.model.buffers(), self.sent):"
                    " own.copy_(sent)\n"
                    "        max_local_epochs = self.local_epochs\n",
                ),
                Edit(
                    CLIENTS + "clientrep.py",
                    "        self.model.train()\n",
                    "        self.model.train()\n"
                    "        self.sent = [tensor.clone() for tensor in"
                    " self.model.buffers()]\n",
                ),
            ),
        ),
    ),
    "perfedavg": (
        Departure(
            "each client trains twice in a round",
            (
                Edit(
                    SERVERS + "serverperavg.py",
                    "                client.train()\n                client.train()\n",
                    "                client.train()\n",
                ),
            ),
        ),
    ),
    "fedrod": (
        Departure(
            "the client's head starts as a copy of the shared one (ours: at zero)",
            (
                Edit(
                    CLIENTS + "clientrod.py",
                    "self.head = copy.deepcopy(self.model.head)",
                    "self.head = copy.deepcopy(self.model.head)\n"
                    "        for p in self.head.parameters(): p.data.zero_()",
                ),
            ),
        ),
    ),
    "fedproto": (
        Departure(
            "class means are of features that the steps saw, each with the weights of its step",
            (
                Edit(
                    CLIENTS + "clientproto.py",
                    "        # self.collect_protos()\n        self.protos = agg_func(protos)\n",
                    "        self.collect_protos()\n",
                ),
            ),
        ),
    ),
    "pfedme": (
        Departure(
            "the personal model is overwritten by the client's copy of the shared one",
            (
                Edit(
                    CLIENTS + "clientpFedMe.py",
                    "self.personalized_params = self.optimizer.step(self.local_params,"
                    " self.device)",
                    "self.personalized_params ="
                    " copy.deepcopy(self.optimizer.step(self.local_params, self.device))",
                ),
            ),
        ),
    ),
    "fedamp": (
        Departure(
            "the penalty has no gradient, so that clients train alone",
            (
                Edit(
                    CLIENTS + "clientamp.py",
                    "torch.cat([p.data.view(-1) for p in self.model.parameters()], dim=0)",
                    "torch.cat([p.view(-1) for p in self.model.parameters()], dim=0)",
                ),
            ),
        ),
        Departure(
            "the penalty is the distance, not its square",
            (
                Edit(
                    CLIENTS + "clientamp.py",
                    "torch.norm(gm-pm, p=2)",
                    "torch.norm(gm-pm, p=2)**2",
                ),
            ),
        ),
    ),
    "feddyn": (
        Departure(
            "the penalty is the distance, not its square",
            (
                Edit(
                    CLIENTS + "clientdyn.py",
                    "torch.norm(v1 - self.global_model_vector, 2)",
                    "torch.norm(v1 - self.global_model_vector, 2)**2",
                ),
            ),
        ),
    ),
    "fedlc": (
        Departure(
            "margins are of all clients' class counts, not of the client's own",
            (
                Edit(
                    SERVERS + "serverlc.py",
                    "torch.tile(val, (args.batch_size, 1))",
                    "torch.tile(args.tau * client.sample_per_class ** (-1/4),"
                    " (args.batch_size, 1))",
                ),
            ),
        ),
    ),
    "fml": (
        Departure(
            "divergences are divided by the number of classes",
            (
                Edit(
                    CLIENTS + "clientfml.py",
                    "nn.KLDivLoss()",
                    'nn.KLDivLoss(reduction="batchmean")',
                ),
            ),
        ),
        Departure(
            "the private model's divergence also trains the shared model",
            (
                Edit(
                    CLIENTS + "clientfml.py",
                    "F.softmax(output_g, dim=1)",
                    "F.softmax(output_g, dim=1).detach()",
                ),
            ),
        ),
        Departure(
            "the shared model's divergence also trains the private model",
            (
                Edit(
                    CLIENTS + "clientfml.py",
                    "F.softmax(output, dim=1)",
                    "F.softmax(output, dim=1).detach()",
                ),
            ),
        ),
    ),
    "fedgh": (
        Departure(
            "the server's head is client 0's own",
            (
                Edit(
                    SERVERS + "servergh.py",
                    "self.head = self.clients[0].model.head",
                    'self.head = __import__("copy").deepcopy(args.model.head)',
                ),
            ),
        ),
        Departure(
            "the server takes one step on each random batch of class means",
            (
                Edit(
                    SERVERS + "servergh.py",
                    "DataLoader(self.uploaded_protos, self.batch_size, drop_last=False,"
                    " shuffle=True)",
                    "[next(iter(DataLoader(self.uploaded_protos, 1000)))] * 3",
                ),
            ),
        ),
    ),
    "fedbn": (
        Departure(
            "layers of batch normalisation are those with bn in their name",
            (
                Edit(
                    CLIENTS + "clientbn.py",
                    "if 'bn' not in nn:",
                    "if nn.rpartition('.')[0] not in [name for name, layer in"
                    " self.model.named_modules() if type(layer).__name__ == 'BatchNorm2d']:",
                ),
            ),
        ),
    ),
    "fedcac": (
        Departure(
            "the first round makes no means of partners",
            (
                Edit(
                    SERVERS + "servercac.py",
                    "if i == 0: self.send_models()",
                    "if i == 0: super().send_models()",
                ),
                Edit(
                    SERVERS + "servercac.py",
                    "if self.epoch != 0:",
                    "if True:",
                ),
            ),
        ),
    ),
}
"""The departures of each method."""
