"""Where PFLlib's code departs from a method's paper, and the expression that takes its place.

Each reason says what the released code does. A comparison runs with all of a method's expressions
replaced; `python -m bench.released_rounds FOLDER --sizes` puts each back alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.released_rounds.edits import Edit

DEPARTURES: Mapping[str, tuple[Edit, ...]] = {
    "moon": (
        Edit(
            "flcore/clients/clientmoon.py",
            "self.old_model = copy.deepcopy(self.model)",
            "self.old_model = copy.deepcopy(self.model).eval()",
            "the last model is in training mode",
        ),
        Edit(
            "flcore/clients/clientmoon.py",
            "self.global_model = model\n",
            "self.global_model = model.eval()\n",
            "the shared model is in training mode",
        ),
    ),
    "fedrep": (
        Edit(
            "flcore/clients/clientrep.py",
            "        max_local_epochs = self.local_epochs\n",
            "        for own, sent in zip(self.model.buffers(), self.sent): own.copy_(sent)\n"
            "        max_local_epochs = self.local_epochs\n",
            "the body's pass goes on from the running statistics that the head's pass has moved",
        ),
        Edit(
            "flcore/clients/clientrep.py",
            "        self.model.train()\n",
            "        self.model.train()\n"
            "        self.sent = [tensor.clone() for tensor in self.model.buffers()]\n",
            "(the same)",
        ),
    ),
    "perfedavg": (
        Edit(
            "flcore/servers/serverperavg.py",
            "                client.train()\n                client.train()\n",
            "                client.train()\n",
            "each client trains twice in a round",
        ),
    ),
    "fedrod": (
        Edit(
            "flcore/clients/clientrod.py",
            "self.head = copy.deepcopy(self.model.head)",
            "self.head = copy.deepcopy(self.model.head)\n"
            "        for p in self.head.parameters(): p.data.zero_()",
            "the client's head starts at the shared one, so that both together count it twice",
        ),
    ),
    "fedproto": (
        Edit(
            "flcore/clients/clientproto.py",
            "        # self.collect_protos()\n        self.protos = agg_func(protos)\n",
            "        self.collect_protos()\n",
            "class means are of features that the steps saw, each with the weights of its step",
        ),
    ),
    "pfedme": (
        Edit(
            "flcore/clients/clientpFedMe.py",
            "self.personalized_params = self.optimizer.step(self.local_params, self.device)",
            "self.personalized_params = copy.deepcopy("
            "self.optimizer.step(self.local_params, self.device))",
            "the personal model is overwritten by the client's copy of the shared one",
        ),
    ),
    "fedamp": (
        Edit(
            "flcore/clients/clientamp.py",
            "torch.cat([p.data.view(-1) for p in self.model.parameters()], dim=0)",
            "torch.cat([p.view(-1) for p in self.model.parameters()], dim=0)",
            "the penalty has no gradient, so that clients train alone",
        ),
        Edit(
            "flcore/clients/clientamp.py",
            "torch.norm(gm-pm, p=2)",
            "torch.norm(gm-pm, p=2)**2",
            "the penalty is the distance, not its square",
        ),
    ),
    "feddyn": (
        Edit(
            "flcore/clients/clientdyn.py",
            "torch.norm(v1 - self.global_model_vector, 2)",
            "torch.norm(v1 - self.global_model_vector, 2)**2",
            "the penalty is the distance, not its square",
        ),
    ),
    "fedlc": (
        Edit(
            "flcore/servers/serverlc.py",
            "torch.tile(val, (args.batch_size, 1))",
            "torch.tile(args.tau * client.sample_per_class ** (-1/4), (args.batch_size, 1))",
            "margins are of all clients' class counts, not of the client's own",
        ),
    ),
    "fml": (
        Edit(
            "flcore/clients/clientfml.py",
            "nn.KLDivLoss()",
            'nn.KLDivLoss(reduction="batchmean")',
            "divergences are divided by the number of classes",
        ),
        Edit(
            "flcore/clients/clientfml.py",
            "F.softmax(output_g, dim=1)",
            "F.softmax(output_g, dim=1).detach()",
            "the private model's divergence also trains the shared model",
        ),
        Edit(
            "flcore/clients/clientfml.py",
            "F.softmax(output, dim=1)",
            "F.softmax(output, dim=1).detach()",
            "the shared model's divergence also trains the private model",
        ),
    ),
    "fedgh": (
        Edit(
            "flcore/servers/servergh.py",
            "self.head = self.clients[0].model.head",
            'self.head = __import__("copy").deepcopy(args.model.head)',
            "the server's head is client 0's own",
        ),
        Edit(
            "flcore/servers/servergh.py",
            "DataLoader(self.uploaded_protos, self.batch_size, drop_last=False, shuffle=True)",
            "[next(iter(DataLoader(self.uploaded_protos, 1000)))] * 3",
            "the server takes one step on each random batch of class means",
        ),
    ),
    "fedbn": (
        Edit(
            "flcore/clients/clientbn.py",
            "if 'bn' not in nn:",
            "if nn.rpartition('.')[0] not in [name for name, layer in"
            " self.model.named_modules() if type(layer).__name__ == 'BatchNorm2d']:",
            "layers of batch normalisation are those with bn in their name",
        ),
    ),
    "fedcac": (
        Edit(
            "flcore/servers/servercac.py",
            "if i == 0: self.send_models()",
            "if i == 0: super().send_models()",
            "the first round makes no means of partners",
        ),
        Edit("flcore/servers/servercac.py", "if self.epoch != 0:", "if True:", "(the same)"),
    ),
}
"""The replaced expressions by method."""
