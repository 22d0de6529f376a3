"""Departures in methods that exchange something else than models or means by class.

See `bench.released_rounds.departures`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.released_rounds.edits import CLIENTS, SERVERS, Departure, Edit

FOMO = CLIENTS + "clientfomo.py", SERVERS + "serverfomo.py"
GEN = CLIENTS + "clientgen.py", SERVERS + "servergen.py"
KD = CLIENTS + "clientkd.py", SERVERS + "serverkd.py"
PCL = CLIENTS + "clientpcl.py", SERVERS + "serverpcl.py"
"""Files of the client and the server of each method."""

EXCHANGE_DEPARTURES: Mapping[str, tuple[Departure, ...]] = {
    "fedfomo": (
        Departure(
            "a client's own model competes with all others for a place, among them initial and"
            " old ones (ours: it is always tried, beside models of the last round)",
            (
                Edit(
                    FOMO[1],
                    "torch.topk(self.P[client.id], M_).indices.tolist()",
                    "[client.id, *self.best_of(client.id, self.uploaded_ids, self.M)]",
                ),
            ),
        ),
        Departure(
            "models are tried in training mode",
            (Edit(FOMO[0], "output = new_model(x)", "output = new_model.eval()(x)"),),
        ),
        Departure(
            "without a gain, a client goes on from the model that it trained, not from the"
            " reference",
            (
                Edit(
                    FOMO[0],
                    "weights = self.weight_scale(self.weight_cal(val_loader))\n",
                    "weights = self.weight_scale(self.weight_cal(val_loader))\n"
                    "        if len(weights) == 0:\n"
                    "            self.model.load_state_dict(self.old_model.state_dict())\n",
                ),
            ),
        ),
        Departure(
            "1e-5 is added to each distance",
            (
                Edit(
                    FOMO[0],
                    "/ (torch.norm(params_dif) + 1e-5)",
                    "/ (params_dif.norm() + (params_dif.norm() == 0))",
                ),
            ),
        ),
        Departure(
            "running statistics are not mixed, and the reference has those of the beginning",
            (
                Edit(
                    FOMO[0],
                    "zip(self.model.parameters(), received_model.parameters())",
                    "zip(*([*m.parameters(), *(b for b in m.buffers() if b.is_floating_point())]"
                    " for m in (self.model, received_model)))",
                ),
                Edit(
                    FOMO[0],
                    "            for param in self.model.parameters():\n",
                    "            for param in [*self.model.parameters(), *(b for b in"
                    " self.model.buffers() if b.is_floating_point())]:\n",
                ),
                Edit(
                    FOMO[0],
                    "self.clone_model(self.model, self.old_model)",
                    "self.old_model.load_state_dict(self.model.state_dict())",
                ),
            ),
        ),
    ),
    "fedgen": (
        Departure(
            "round 1 trains on the untrained generator",
            (
                Edit(
                    GEN[0],
                    "            z = self.generative_model(labels)\n"
                    "                loss += self.loss(self.model.head(z), labels)\n\n"
                    "                self.optimizer",
                    "            z = self.generative_model(labels)\n"
                    "                loss += self.loss(self.model.head(z), labels) *"
                    ' hasattr(self.generative_model, "has_learned")\n\n'
                    "                self.optimizer",
                ),
                Edit(
                    GEN[1],
                    "        self.generative_model.train()\n",
                    "        self.generative_model.train()\n"
                    "        self.generative_model.has_learned = True\n",
                ),
            ),
        ),
        Departure(
            "outputs of clients are weighted by their samples, not averaged",
            (
                Edit(
                    GEN[1],
                    "in zip(self.uploaded_weights, self.uploaded_models)",
                    "in ((1 / len(self.uploaded_models), m) for m in self.uploaded_models)",
                ),
            ),
        ),
        Departure(
            "features need not differ where noise does",
            (
                Edit(
                    GEN[1],
                    "loss = self.loss(logits, labels)",
                    "eps = self.generative_model.eps\n"
                    "            gaps = torch.cdist(z, z, p=1) / z.shape[1]\n"
                    "            gaps = gaps * torch.cdist(eps, eps) ** 2 / eps.shape[1]\n"
                    "            loss = self.loss(logits, labels) + torch.exp(-gaps.mean())",
                ),
            ),
        ),
        Departure(
            "noise is uniform (its comment says Gaussian)",
            (
                Edit(
                    GEN[1],
                    "torch.special.ndtr(self.draw(batch_size))",
                    "self.draw(batch_size)",
                ),
            ),
        ),
        Departure(
            "the generator has batch normalisation (ours: none)",
            (Edit(GEN[1], "            nn.BatchNorm1d(hidden_dim), \n", ""),),
        ),
        Departure(
            "labels follow the class counts of all clients (ours: of the round's)",
            (
                Edit(
                    GEN[1],
                    "        self.generative_model.train()\n",
                    "        self.generative_model.train()\n"
                    "        self.qualified_labels = [y for c in self.selected_clients for y in"
                    " range(self.num_classes) for _ in range(int(c.sample_per_class[y]))]\n"
                    "        for client in self.clients:\n"
                    "            client.qualified_labels = self.qualified_labels\n",
                ),
            ),
        ),
    ),
    "fedkd": (
        Departure(
            "divergences are divided by the number of classes",
            (Edit(KD[0], "nn.KLDivLoss()", 'nn.KLDivLoss(reduction="batchmean")'),),
        ),
        Departure(
            "each divergence trains both models",
            (
                Edit(KD[0], "F.softmax(output_g, dim=1)", "F.softmax(output_g, dim=1).detach()"),
                Edit(KD[0], "F.softmax(output, dim=1)", "F.softmax(output, dim=1).detach()"),
            ),
        ),
        Departure(
            "the distance of features is in both losses for both models and the matrix",
            (
                Edit(
                    KD[0],
                    "L_h = self.MSE(rep, self.W_h(rep_g))",
                    "L_h = self.MSE(rep, self.W_h(rep_g).detach())",
                ),
                Edit(
                    KD[0],
                    "L_h_g = self.MSE(rep, self.W_h(rep_g))",
                    "L_h_g = self.MSE(rep.detach(), self.W_h(rep_g))",
                ),
            ),
        ),
        Departure(
            "the divisor has a gradient (ours: none)",
            (Edit(KD[0], "(CE_loss + CE_loss_g)", "(CE_loss + CE_loss_g).detach()"),),
        ),
        Departure(
            "weights are cut, not their changes",
            (
                Edit(
                    KD[0],
                    "self.compressed_param = {}\n        self.energy = None\n",
                    "self.compressed_param = {}\n"
                    "        self.energy = None\n"
                    "        self.sent = {n: p.data.clone() for n, p in"
                    " self.global_model.named_parameters()}\n",
                ),
                Edit(
                    KD[0],
                    "param_cpu = param.detach()",
                    "param_cpu = (param - self.sent[name]).detach()",
                ),
                Edit(
                    KD[0],
                    "        self.energy = energy\n",
                    "        self.energy = energy\n"
                    "        for name, param in self.global_model.named_parameters():\n"
                    "            if name in global_param:\n"
                    "                self.sent[name] = self.sent[name] + param.data\n"
                    "                param.data = self.sent[name].clone()\n",
                ),
            ),
        ),
        Departure(
            "ranks are tried from 0, and never the full one, in whose place nothing is kept",
            tuple(Edit(file, "range(len(sigma))", "range(1, len(sigma) + 1)") for file in KD),
        ),
        Departure(
            "kernels are cut as matrices of their height and width (ours: [outputs, all others])",
            (
                *(
                    Edit(
                        file,
                        "np.linalg.svd(param_cpu, ",
                        "np.linalg.svd(param_cpu.reshape(len(param_cpu), -1), ",
                    )
                    for file in KD
                ),
                Edit(
                    KD[0],
                    "device=self.device).data",
                    "device=self.device).reshape(old_param.shape).data",
                ),
            ),
        ),
        Departure(
            "the share of energy grows from the second round on (ours: from the first)",
            (
                Edit(
                    KD[1],
                    "self.energy = self.T_start\n",
                    "self.energy = self.T_start + (self.T_end - self.T_start) /"
                    " (self.global_rounds + 1)\n",
                ),
                Edit(
                    KD[1],
                    "((1 + i) / self.global_rounds)",
                    "((2 + i) / (self.global_rounds + 1))",
                ),
            ),
        ),
    ),
    "fedpcl": (
        Departure(
            "features are the outputs of the head, not what enters it",
            (Edit(PCL[0], "rep = self.model(x)", "rep = self.model.base(x)"),),
        ),
        Departure(
            "prototypes stand in the order in which a client met the classes, and labels are"
            " taken as their positions",
            tuple(
                Edit(PCL[0], f"for k in {kind}.keys()", "for k in range(self.num_classes)")
                for kind in ("self.global_protos", "client_protos")
            ),
        ),
        Departure(
            "the mean is over the round's clients (ours: over the latest prototypes of all)",
            (
                Edit(
                    PCL[1],
                    "proto_aggregation(self.uploaded_protos)",
                    "proto_aggregation([p for p in self.client_protos_set if p is not None])",
                ),
            ),
        ),
        Departure(
            "what a client lacks is filled once, with the mean of that round, which then counts as"
            " its own; so do clients without prototypes",
            (
                Edit(PCL[1], "self.prototype_padding()\n", "pass\n"),
                Edit(
                    PCL[1],
                    "client.set_protos(self.global_protos, self.client_protos_set)",
                    "client.set_protos(self.global_protos, [{**self.global_protos, **protos} for"
                    " protos in self.client_protos_set if protos is not None])",
                ),
            ),
        ),
        Departure(
            "a client does not train when it takes part first, though it has the means",
            (
                Edit(
                    PCL[0],
                    "if self.protos is not None:\n            trainloader",
                    "if self.global_protos is not None:\n            trainloader",
                ),
            ),
        ),
        Departure(
            "gradients longer than 10 are cut to that length",
            (
                Edit(
                    PCL[0],
                    "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10)",
                    "pass",
                ),
            ),
        ),
        Departure(
            "running statistics stand still in the first round (ours: they move)",
            (
                Edit(
                    PCL[0],
                    "        else:\n            self.collect_protos()\n",
                    "        else:\n"
                    "            self.model.train()\n"
                    "            trainloader = self.load_train_data()\n"
                    "            for _ in range(self.local_epochs):\n"
                    "                for x, y in trainloader: self.model(x)\n"
                    "            self.collect_protos()\n",
                ),
            ),
        ),
    ),
}
"""The departures of each method."""

EXCHANGE_HARNESS: Mapping[str, tuple[Edit, ...]] = {
    "fedgen": (
        Edit(
            GEN[1],
            "torch.rand((batch_size, self.noise_dim), device=self.device)",
            "torch.special.ndtr(self.draw(batch_size)); self.eps = eps",
        ),
        *(
            Edit(file, "np.random.choice(self.qualified_labels, self.batch_size)", "self.labels()")
            for file in GEN
        ),
    ),
    "fedkd": (
        Edit(KD[0], "len(global_param[k]) == 3", "isinstance(global_param[k], list)"),
        Edit(
            KD[1],
            "len(client.compressed_param[k]) == 3",
            "isinstance(client.compressed_param[k], list)",
        ),
    ),
}
"""Expressions that are replaced although they are no departure: both programs of FedGen get the
same noise and labels, and FedKD's does not end in an error where a weight has three rows.
"""
