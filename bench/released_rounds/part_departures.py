"""Departures in methods that have parts beside the network's own weights.

See `bench.released_rounds.departures`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.released_rounds.edits import CLIENTS, SERVERS, Departure, Edit

PART_DEPARTURES: Mapping[str, tuple[Departure, ...]] = {
    "apfl": (
        Departure(
            "the own model takes plain steps, not those of the mixture, and alpha adapts in"
            " every step, to both models after it",
            (
                Edit(
                    CLIENTS + "clientapfl.py",
                    "                self.optimizer.step()\n"
                    "\n"
                    "                output_per = self.model_per(x)\n",
                    "\n"
                    "                output_per ="
                    " torch.func.functional_call(self.model_per, {name: self.alpha * v +"
                    " (1 - self.alpha) * w.detach() for (name, v), w in"
                    " zip(self.model_per.named_parameters(), self.model.parameters())}, x)\n"
                    "                weights = [w.detach().clone() for w in"
                    " self.model.parameters()]\n"
                    "                values = [v.detach().clone() for v in"
                    " self.model_per.parameters()]\n"
                    "                self.optimizer.step()\n",
                ),
                Edit(
                    CLIENTS + "clientapfl.py",
                    "                self.alpha_update()\n",
                    "                if i == epoch == 0: self.alpha_update(weights, values)\n",
                ),
                Edit(
                    CLIENTS + "clientapfl.py",
                    "    def alpha_update(self):\n        grad_alpha = 0\n",
                    "    def alpha_update(self, weights, values):\n"
                    "        slopes = [v.grad / self.alpha for v in"
                    " self.model_per.parameters()]\n"
                    "        terms = [((v - w) * g).sum() for v, w, g in zip(values,"
                    " weights, slopes)]\n"
                    "        alpha = self.alpha - self.learning_rate * sum(terms)\n"
                    "        self.alpha = float(np.clip(alpha, 0, 1))\n"
                    "        return\n"
                    "        grad_alpha = 0\n",
                ),
            ),
        ),
        Departure(
            "the own model is overwritten by the mixture after each round",
            (
                Edit(
                    CLIENTS + "clientapfl.py",
                    "            lp.data = (1 - self.alpha) * p + self.alpha * lp\n",
                    "            pass\n",
                ),
            ),
        ),
    ),
    "apple": (
        Departure(
            "cores are changed in place, so that later clients of a round mix trained ones",
            (
                Edit(
                    CLIENTS + "clientapple.py",
                    "self.model_cs = model_cs\n",
                    "self.model_cs = copy.deepcopy(model_cs)\n",
                ),
                Edit(
                    CLIENTS + "clientapple.py",
                    "            param_c.data = param_.data.clone()\n",
                    "            pass\n",
                ),
            ),
        ),
        Departure(
            "the mixture is kept as the core",
            (
                Edit(
                    CLIENTS + "clientapple.py",
                    "self.model_c = copy.deepcopy(self.model)\n\n        if",
                    "self.model_c = copy.deepcopy(self.model_cs[self.id])\n\n        if",
                ),
            ),
        ),
        Departure(
            "weights of cores begin equal, not as shares of the samples",
            (Edit(SERVERS + "serverapple.py", "c.p0 = p0", "c.p0, c.ps = p0, list(p0)"),),
        ),
        Departure(
            "the slope of a weight is a mean of products over weights and layers, not their sum",
            (
                Edit(
                    CLIENTS + "clientapple.py",
                    "torch.mean(param.grad * param_c)",
                    "torch.sum(param.grad * param_c)",
                ),
                Edit(CLIENTS + "clientapple.py", "p_grad = p_grad / cnt\n", "p_grad = p_grad\n"),
            ),
        ),
        Departure(
            "the rate of cores is multiplied by the number of clients",
            (
                Edit(
                    CLIENTS + "clientapple.py",
                    "self.learning_rate = self.learning_rate * self.num_clients",
                    "self.learning_rate = self.learning_rate",
                ),
            ),
        ),
        Departure(
            "weights learn with the core after its step",
            (
                Edit(
                    CLIENTS + "clientapple.py",
                    "param_c.data = param_c - self.learning_rate * param.grad * self.ps[self.id]",
                    "share = self.ps[self.id]",
                ),
                Edit(
                    CLIENTS + "clientapple.py",
                    "                    self.ps[cid] = self.ps[cid] - self.drlr * p_grad\n",
                    "                    self.ps[cid] = self.ps[cid] - self.drlr * p_grad\n"
                    "                for param_c, param in"
                    " zip(self.model_cs[self.id].parameters(), self.model.parameters()):\n"
                    "                    param_c.data ="
                    " param_c - self.learning_rate * param.grad * share\n",
                ),
            ),
        ),
        Departure(
            "the penalty's decay begins a round late",
            (
                Edit(CLIENTS + "clientapple.py", "if R < self.L:", "if R + 1 < self.L:"),
                Edit(
                    CLIENTS + "clientapple.py",
                    "math.cos(R * math.pi / self.L)",
                    "math.cos((R + 1) * math.pi / self.L)",
                ),
            ),
        ),
    ),
    "fedphp": (
        Departure(
            "the term is there in a client's first round, with the initial model",
            (
                Edit(
                    CLIENTS + "clientphp.py",
                    "self.loss(output, y) * (1 - self.lamda)",
                    "self.loss(output, y) * (1 - self.lamda * (self.taken > 0))",
                ),
                Edit(
                    CLIENTS + "clientphp.py",
                    ", self.device) * self.lamda",
                    ", self.device) * self.lamda * (self.taken > 0)",
                ),
            ),
        ),
        Departure(
            "the term is a discrepancy of features, not distillation",
            (
                Edit(
                    CLIENTS + "clientphp.py",
                    "MMD(self.model.base(x), self.model_p.base(x), 'rbf', self.device)",
                    "-(torch.softmax(self.model_p.eval()(x) / 4, 1) *"
                    " output.log_softmax(1)).sum(1).mean()",
                ),
            ),
        ),
        Departure(
            "mu grows with the number of rounds, not with those of the client",
            (
                Edit(
                    CLIENTS + "clientphp.py", "self.mu * self.round", "self.mu * min(1, self.taken)"
                ),
                Edit(CLIENTS + "clientphp.py", "args.mu / args.global_rounds", "args.mu"),
            ),
        ),
        Departure(
            "running statistics are not inherited",
            (
                Edit(
                    CLIENTS + "clientphp.py",
                    "zip(self.model.parameters(), self.model_p.parameters())",
                    "zip([*self.model.parameters(), *(b for b in self.model.buffers() if"
                    " b.is_floating_point())], [*self.model_p.parameters(), *(b for b in"
                    " self.model_p.buffers() if b.is_floating_point())])",
                ),
            ),
        ),
    ),
    "fedala": (
        Departure(
            "a share of the samples, one slice in a fixed order (ours: all of them)",
            (
                Edit(
                    "utils/ALA.py",
                    "rand_loader = DataLoader(self.train_data[rand_idx:rand_idx+rand_num],"
                    " self.batch_size, drop_last=False)",
                    "rand_loader = self.batches(self.start_phase)",
                ),
            ),
        ),
        Departure(
            "the first phase goes on until the loss is steady (ours: a number of epochs)",
            (
                Edit(
                    "utils/ALA.py",
                    "len(losses) > self.num_pre_loss and"
                    " np.std(losses[-self.num_pre_loss:]) < self.threshold",
                    "cnt == 2",
                ),
            ),
        ),
        Departure(
            "a client that was never drawn mixes its initial model with the shared one",
            (
                Edit(
                    "utils/ALA.py",
                    "if torch.sum(params_g[0] - params[0]) == 0:\n            return\n",
                    "if not hasattr(self, 'received'):\n"
                    "            self.received = True\n"
                    "            for p, g in zip(params, params_g): p.data ="
                    " g.data.clone()\n"
                    "            return\n",
                ),
            ),
        ),
        Departure(
            "all clients adapt their shares in every round",
            (
                Edit(
                    SERVERS + "serverala.py",
                    "for client in self.clients:\n            client.local_init",
                    "for client in self.selected_clients:\n            client.local_init",
                ),
            ),
        ),
    ),
    "feddbe": (
        Departure(
            "a client's mean feature is the last of a running mean over its batches",
            (
                Edit(
                    SERVERS + "serverdbe.py",
                    "client.train() # no DBE\n",
                    "client.train() # no DBE\n"
                    "            client.model.eval()\n"
                    "            client.running_mean ="
                    " client.mean_of([client.model.base(x).detach() for x, y in"
                    " client.load_train_data()])\n",
                ),
                Edit(
                    CLIENTS + "clientdbe.py",
                    "    def reset_running_stats(self):\n",
                    "    def mean_of(self, features):\n"
                    "        return torch.cat(features).mean(0)\n"
                    "\n"
                    "    def reset_running_stats(self):\n",
                ),
            ),
        ),
        Departure(
            "a batch that only tells the width of features moves running statistics",
            (
                Edit(
                    CLIENTS + "clientdbe.py",
                    "rep = self.model.base(x).detach()",
                    "rep = self.model.eval().base(x).detach()",
                ),
            ),
        ),
    ),
    "fedcp": (
        Departure(
            "the context of a client's first round is random",
            (
                Edit(
                    CLIENTS + "clientcp.py",
                    "self.context = torch.rand(1, in_dim).to(self.device)",
                    "self.context = args.model.head.weight.data.sum(0, keepdim=True)",
                ),
            ),
        ),
        Departure(
            "the copy of the sent body is in training mode",
            (
                Edit(
                    CLIENTS + "clientcp.py",
                    "return output, rep, self.base(x)",
                    "return output, rep, self.base.eval()(x)",
                ),
            ),
        ),
        Departure(
            "a client that did not take part in the last round has an older shared head",
            (
                Edit(
                    SERVERS + "servercp.py",
                    "for client in self.selected_clients:\n"
                    "            client.set_head_g(self.head)",
                    "for client in self.clients:\n            client.set_head_g(self.head)",
                ),
            ),
        ),
        Departure(
            "a client that did not take part in the last round has an older selector",
            (
                Edit(
                    SERVERS + "servercp.py",
                    "for client in self.selected_clients:\n            client.set_cs(self.cs)",
                    "for client in self.clients:\n            client.set_cs(self.cs)",
                ),
            ),
        ),
    ),
    "gpfl": (
        Departure(
            "conditions are of the client's own embeddings of before",
            (
                Edit(
                    CLIENTS + "clientgpfl.py",
                    "embeddings = self.GCE.embedding(",
                    "embeddings = GCE.embedding(",
                ),
            ),
        ),
        Departure(
            "the distance is one norm over the batch, which grows with it",
            (
                Edit(
                    CLIENTS + "clientgpfl.py",
                    "torch.norm(feat_G - emb, 2)",
                    "torch.norm(feat_G - emb, 2, dim=1).mean()",
                ),
            ),
        ),
    ),
}
"""The departures of each method."""

PART_HARNESS: Mapping[str, tuple[Edit, ...]] = {
    "fedphp": (
        Edit(
            CLIENTS + "clientphp.py",
            "        self.lamda = args.lamda\n",
            "        self.lamda, self.taken = args.lamda, 0\n",
        ),
        Edit(
            CLIENTS + "clientphp.py",
            "        if self.learning_rate_decay:\n",
            "        self.taken += 1\n        if self.learning_rate_decay:\n",
        ),
    ),
    "fedcp": (
        Edit(
            SERVERS + "servercp.py",
            "F.gumbel_softmax(x, dim=1, tau=tau, hard=hard)",
            "self.draw(x)",
        ),
    ),
}
"""Expressions that are replaced although they are no departure: FedPHP's clients count their
rounds, and both programs of FedCP get the same noise.
"""
