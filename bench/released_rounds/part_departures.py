"""Departures of PFLlib's code in methods that have parts beside the network's own weights.

See `bench.released_rounds.departures`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.released_rounds.edits import Edit

CLIENTS, SERVERS = "flcore/clients/", "flcore/servers/"

RUNNING = "(b for b in {}.buffers() if b.is_floating_point())"

PART_DEPARTURES: Mapping[str, tuple[Edit, ...]] = {
    "apfl": (
        Edit(
            CLIENTS + "clientapfl.py",
            "                self.optimizer.step()\n\n"
            "                output_per = self.model_per(x)\n",
            "\n                output_per = torch.func.functional_call(self.model_per, {name:"
            " self.alpha * v + (1 - self.alpha) * w.detach() for (name, v), w in"
            " zip(self.model_per.named_parameters(), self.model.parameters())}, x)\n"
            "                weights = [w.detach().clone() for w in self.model.parameters()]\n"
            "                values = [v.detach().clone() for v in self.model_per.parameters()]\n"
            "                self.optimizer.step()\n",
            "the client's own model takes plain steps, not those of the mixture",
        ),
        Edit(
            CLIENTS + "clientapfl.py",
            "                self.alpha_update()\n",
            "                if i == epoch == 0: self.alpha_update(weights, values)\n",
            "alpha adapts in every step, to both models after it",
        ),
        Edit(
            CLIENTS + "clientapfl.py",
            "    def alpha_update(self):\n        grad_alpha = 0\n",
            "    def alpha_update(self, weights, values):\n"
            "        slopes = [v.grad / self.alpha for v in self.model_per.parameters()]\n"
            "        terms = [((v - w) * g).sum() for v, w, g in zip(values, weights, slopes)]\n"
            "        alpha = self.alpha - self.learning_rate * sum(terms)\n"
            "        self.alpha = float(np.clip(alpha, 0, 1))\n"
            "        return\n"
            "        grad_alpha = 0\n",
            "(the same); its slope has a further .02 alpha",
        ),
        Edit(
            CLIENTS + "clientapfl.py",
            "            lp.data = (1 - self.alpha) * p + self.alpha * lp\n",
            "            pass\n",
            "the own model is overwritten by the mixture after each round",
        ),
    ),
    "fedphp": (
        Edit(
            CLIENTS + "clientphp.py",
            "loss = self.loss(output, y) * (1 - self.lamda)",
            "share = self.lamda * (self.taken > 0); loss = self.loss(output, y) * (1 - share)",
            "the term is there in a client's first round, with the initial model",
        ),
        Edit(
            CLIENTS + "clientphp.py",
            "MMD(self.model.base(x), self.model_p.base(x), 'rbf', self.device) * self.lamda",
            "-(torch.softmax(self.model_p.eval()(x) / 4, 1) * output.log_softmax(1))"
            ".sum(1).mean() * share",
            "the term is a discrepancy of features, not distillation",
        ),
        Edit(
            CLIENTS + "clientphp.py",
            "        mu = self.mu * self.round\n",
            "        mu = self.mu * min(1, self.taken)\n        self.taken += 1\n",
            "mu grows with the number of rounds, not with those of the client",
        ),
        Edit(
            CLIENTS + "clientphp.py",
            "self.mu = args.mu / args.global_rounds\n",
            "self.mu, self.taken = args.mu, 0\n",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientphp.py",
            "zip(self.model.parameters(), self.model_p.parameters())",
            "zip([*self.model.parameters(), *" + RUNNING.format("self.model") + "],"
            " [*self.model_p.parameters(), *" + RUNNING.format("self.model_p") + "])",
            "running statistics are not inherited",
        ),
    ),
    "fedala": (
        Edit(
            "utils/ALA.py",
            "rand_loader = DataLoader(self.train_data[rand_idx:rand_idx+rand_num],"
            " self.batch_size, drop_last=False)",
            "rand_loader = self.batches(self.start_phase)",
            "a share of the samples, one slice in a fixed order (ours: all of them)",
        ),
        Edit(
            "utils/ALA.py",
            "len(losses) > self.num_pre_loss and"
            " np.std(losses[-self.num_pre_loss:]) < self.threshold",
            "cnt == 2",
            "the first phase goes on until the loss is steady (ours: a number of epochs)",
        ),
        Edit(
            "utils/ALA.py",
            "if torch.sum(params_g[0] - params[0]) == 0:\n            return\n",
            "if not hasattr(self, 'received'):\n"
            "            self.received = True\n"
            "            for p, g in zip(params, params_g): p.data = g.data.clone()\n"
            "            return\n",
            "a client that was never drawn mixes its initial model with the shared one",
        ),
        Edit(
            SERVERS + "serverala.py",
            "for client in self.clients:\n            client.local_init",
            "for client in self.selected_clients:\n            client.local_init",
            "all clients adapt their shares in every round",
        ),
    ),
    "feddbe": (
        Edit(
            SERVERS + "serverdbe.py",
            "client.train() # no DBE\n",
            "client.train() # no DBE\n"
            "            client.model.eval()\n"
            "            client.running_mean = client.mean_of([client.model.base(x).detach()"
            " for x, y in client.load_train_data()])\n",
            "a client's mean feature is the last of a running mean over its batches",
        ),
        Edit(
            CLIENTS + "clientdbe.py",
            "    def reset_running_stats(self):\n",
            "    def mean_of(self, features):\n        return torch.cat(features).mean(0)\n\n"
            "    def reset_running_stats(self):\n",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientdbe.py",
            "rep = self.model.base(x).detach()",
            "rep = self.model.eval().base(x).detach()",
            "a batch that only tells the width of features moves running statistics",
        ),
    ),
    "fedcp": (
        Edit(
            CLIENTS + "clientcp.py",
            "self.context = torch.rand(1, in_dim).to(self.device)",
            "self.context = args.model.head.weight.data.sum(0, keepdim=True)",
            "the context of a client's first round is random",
        ),
        Edit(
            CLIENTS + "clientcp.py",
            "return output, rep, self.base(x)",
            "return output, rep, self.base.eval()(x)",
            "the copy of the sent body is in training mode",
        ),
        Edit(
            SERVERS + "servercp.py",
            "for client in self.selected_clients:\n            client.set_head_g(self.head)",
            "for client in self.clients:\n            client.set_head_g(self.head)",
            "a client that did not take part in the last round has an older shared head",
        ),
        Edit(
            SERVERS + "servercp.py",
            "for client in self.selected_clients:\n            client.set_cs(self.cs)",
            "for client in self.clients:\n            client.set_cs(self.cs)",
            "a client that did not take part in the last round has an older selector",
        ),
        Edit(
            SERVERS + "servercp.py",
            "F.gumbel_softmax(x, dim=1, tau=tau, hard=hard)",
            "self.draw(x)",
            "(no departure: both programs get the same noise)",
        ),
    ),
    "gpfl": (
        Edit(
            CLIENTS + "clientgpfl.py",
            "embeddings = self.GCE.embedding(",
            "embeddings = GCE.embedding(",
            "conditions are of the client's own embeddings of before",
        ),
        Edit(
            CLIENTS + "clientgpfl.py",
            "torch.norm(feat_G - emb, 2)",
            "torch.norm(feat_G - emb, 2, dim=1).mean()",
            "the distance is one norm over the batch, which grows with it",
        ),
    ),
    "fedpac": (
        Edit(
            SERVERS + "serverpac.py",
            "random.sample(\n            self.selected_clients,"
            " int((1-self.client_drop_rate) * self.current_num_join_clients))",
            "list(self.selected_clients)",
            "uploads are shuffled after statistics were collected, so that statistics and heads"
            " are of different clients",
        ),
        Edit(
            SERVERS + "serverpac.py",
            "        head_weights = solve_quadratic(",
            "        self.uploaded_heads = copy.deepcopy(self.uploaded_heads)\n"
            "        head_weights = solve_quadratic(",
            "heads are mixed in place, so that mixtures contain mixtures",
        ),
        Edit(
            SERVERS + "serverpac.py",
            "alpha = [(i)*(i>eps) for i in alpha]",
            "alpha = [(i)*(i>eps) for i in alpha]; alpha = [i / sum(alpha) for i in alpha]",
            "weights below .001 become 0, and the others are not divided by their sum",
        ),
        Edit(
            SERVERS + "serverpac.py",
            "alpha = alphav.value",
            'alpha = __import__("fl.blocks.simplex_quadratic", fromlist=["fl"])'
            ".minimise_on_simplex(torch.tensor(p_matrix)).tolist()",
            "the solver has eight digits",
        ),
        Edit(
            SERVERS + "serverpac.py",
            "self.global_protos = proto_aggregation(self.uploaded_protos)",
            "self.global_protos = {c: sum(k.counts[c] * k.protos[c] for k in"
            " self.selected_clients if c in k.protos) / sum(k.counts[c] for k in"
            " self.selected_clients if c in k.protos) for c in range(self.num_classes)}",
            "prototypes of clients count alike, whatever their numbers of samples",
        ),
        Edit(
            CLIENTS + "clientpac.py",
            "\n        self.protos = agg_func(protos)\n",
            "\n        self.counts = {label: len(found) for label, found in protos.items()}\n"
            "        self.protos = agg_func(protos)\n",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientpac.py",
            "        model = self.model\n",
            "        model = self.model.eval()\n",
            "statistics of a client's first round are of a model in training mode",
        ),
        Edit(
            CLIENTS + "clientpac.py",
            "\n        self.V, self.h = self.statistics_extraction()",
            "",
            "(no departure: statistics are taken when running statistics have arrived)",
        ),
        Edit(
            SERVERS + "serverpac.py",
            "self.Vars.append(client.V)",
            "client.V, client.h = client.statistics_extraction(); self.Vars.append(client.V)",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientpac.py",
            "        self.model.train()\n",
            "        self.model.train()\n"
            "        sent = [tensor.clone() for tensor in self.model.buffers()]\n",
            "the body's pass goes on from the running statistics that the head's pass has moved",
        ),
        Edit(
            CLIENTS + "clientpac.py",
            "            param.requires_grad = False\n            \n",
            "            param.requires_grad = False\n"
            "        for own, new in zip(self.model.buffers(), sent): own.copy_(new)\n",
            "(the same)",
        ),
    ),
    "fedas": (
        Edit(
            CLIENTS + "clientas.py",
            "self.load_train_data()):",
            "self.load_train_data(1)):",
            "the information is of gradients of batches, not of samples",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "append(fim_trace_sum.item())",
            "append(fim_trace_sum.item() / self.train_samples)",
            "the information is a sum over batches, so that it grows with a client's samples",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "mean_prototypes[label.item()])",
            "mean_prototypes[label.item()]) * (y_batch == label).sum() / len(y_batch)",
            "the alignment is a sum over the classes of a batch",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "for _ in range(1):",
            "for _ in range(int(self.has_trained)):",
            "a client that has not trained aligns the body with that of its initial model",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "self.fim_trace_history = []\n",
            "self.fim_trace_history = []\n        self.has_trained = False\n",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "        if is_selected:\n",
            "        if is_selected:\n            self.has_trained = True\n",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "proto_batch = self.model.base(x_batch)",
            "proto_batch = self.model.eval().base(x_batch)",
            "(the same)",
        ),
        Edit(
            CLIENTS + "clientas.py",
            "global_proto_batch = model.base(x_batch)",
            "global_proto_batch = model.train().base(x_batch)",
            "the body is aligned in evaluation mode (ours: as it trains)",
        ),
    ),
}
"""The replaced expressions by method."""
