"""Departures in methods whose clients exchange means by class.

See `bench.released_rounds.departures`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.released_rounds.edits import CLIENTS, SERVERS, Departure, Edit

ALIGNMENT_DEPARTURES: Mapping[str, tuple[Departure, ...]] = {
    "fd": (
        Departure(
            "outputs are raw logits, used as targets of a cross-entropy, and gathered while a"
            " client trains (ours: probabilities of the trained model)",
            (
                Edit(
                    CLIENTS + "clientfd.py",
                    "        self.logits = agg_func(logits)\n",
                    "        self.model.eval()\n"
                    "        outputs = defaultdict(list)\n"
                    "        for x, y in self.load_train_data():\n"
                    "            for label, output in zip(y, self.model(x).detach().softmax(1)):\n"
                    "                outputs[label.item()].append(output)\n"
                    "        self.logits = agg_func(outputs)\n",
                ),
            ),
        ),
        Departure(
            "a client's own outputs stay in the mean",
            (
                Edit(
                    SERVERS + "serverfd.py",
                    "client.set_logits(self.global_logits)",
                    "client.set_logits(proto_aggregation([other.logits for other in"
                    " self.selected_clients if other is not client]))",
                ),
            ),
        ),
        Departure(
            "samples of a class without a target have their own outputs as targets",
            (
                Edit(
                    CLIENTS + "clientfd.py",
                    "copy.deepcopy(output.detach())",
                    "torch.zeros_like(output)",
                ),
            ),
        ),
    ),
    "fedpac": (
        Departure(
            "uploads are shuffled after statistics were collected, so that"
            " statistics and heads are of different clients",
            (
                Edit(
                    SERVERS + "serverpac.py",
                    "random.sample(\n"
                    "            self.selected_clients, int((1-self.client_drop_rate) *"
                    " self.current_num_join_clients))",
                    "list(self.selected_clients)",
                ),
            ),
        ),
        Departure(
            "heads are mixed in place, so that mixtures contain mixtures",
            (
                Edit(
                    SERVERS + "serverpac.py",
                    "        head_weights = solve_quadratic(",
                    "        self.uploaded_heads = copy.deepcopy(self.uploaded_heads)\n"
                    "        head_weights = solve_quadratic(",
                ),
            ),
        ),
        Departure(
            "weights below .001 become 0, and the others are not divided by their sum",
            (
                Edit(
                    SERVERS + "serverpac.py",
                    "alpha = [(i)*(i>eps) for i in alpha]",
                    "alpha = [(i)*(i>eps) for i in alpha]; alpha = [i / sum(alpha) for i in alpha]",
                ),
            ),
        ),
        Departure(
            "the solver has eight digits",
            (
                Edit(
                    SERVERS + "serverpac.py",
                    "alpha = alphav.value",
                    'alpha = __import__("fl.blocks.simplex_quadratic",'
                    ' fromlist=["fl"]).minimise_on_simplex(torch.tensor(p_matrix)).tolist()',
                ),
            ),
        ),
        Departure(
            "prototypes of clients count alike, whatever their numbers of samples",
            (
                Edit(
                    SERVERS + "serverpac.py",
                    "self.global_protos = proto_aggregation(self.uploaded_protos)",
                    "self.global_protos = {c: sum(k.counts[c] * k.protos[c] for k in"
                    " self.selected_clients if c in k.protos) / sum(k.counts[c] for k in"
                    " self.selected_clients if c in k.protos) for c in"
                    " range(self.num_classes)}",
                ),
                Edit(
                    CLIENTS + "clientpac.py",
                    "\n        self.protos = agg_func(protos)\n",
                    "\n"
                    "        self.counts = {label: len(found) for label, found in"
                    " protos.items()}\n"
                    "        self.protos = agg_func(protos)\n",
                ),
            ),
        ),
        Departure(
            "statistics of a client's first round are of a model in training mode",
            (
                Edit(
                    CLIENTS + "clientpac.py",
                    "        model = self.model\n",
                    "        model = self.model.eval()\n",
                ),
            ),
        ),
        Departure(
            "the body's pass goes on from the running statistics that the head's pass has moved",
            (
                Edit(
                    CLIENTS + "clientpac.py",
                    "        self.model.train()\n",
                    "        self.model.train()\n"
                    "        sent = [tensor.clone() for tensor in self.model.buffers()]\n",
                ),
                Edit(
                    CLIENTS + "clientpac.py",
                    "            param.requires_grad = False\n            \n",
                    "            param.requires_grad = False\n"
                    "        for own, new in zip(self.model.buffers(), sent):"
                    " own.copy_(new)\n",
                ),
            ),
        ),
    ),
    "fedas": (
        Departure(
            "the information is of gradients of batches, not of samples",
            (
                Edit(
                    CLIENTS + "clientas.py",
                    "self.load_train_data()):",
                    "self.load_train_data(1)):",
                ),
            ),
        ),
        Departure(
            "the information is a sum over batches, so that it grows with a client's samples",
            (
                Edit(
                    CLIENTS + "clientas.py",
                    "append(fim_trace_sum.item())",
                    "append(fim_trace_sum.item() / self.train_samples)",
                ),
            ),
        ),
        Departure(
            "the alignment is a sum over the classes of a batch",
            (
                Edit(
                    CLIENTS + "clientas.py",
                    "mean_prototypes[label.item()])",
                    "mean_prototypes[label.item()]) * (y_batch == label).sum() / len(y_batch)",
                ),
            ),
        ),
        Departure(
            "a client that has not trained aligns the body with that of its initial model",
            (
                Edit(
                    CLIENTS + "clientas.py",
                    "for _ in range(1):",
                    "for _ in range(int(self.has_trained)):",
                ),
                Edit(
                    CLIENTS + "clientas.py",
                    "self.fim_trace_history = []\n",
                    "self.fim_trace_history = []\n        self.has_trained = False\n",
                ),
                Edit(
                    CLIENTS + "clientas.py",
                    "        if is_selected:\n",
                    "        if is_selected:\n            self.has_trained = True\n",
                ),
                Edit(
                    CLIENTS + "clientas.py",
                    "proto_batch = self.model.base(x_batch)",
                    "proto_batch = self.model.eval().base(x_batch)",
                ),
            ),
        ),
        Departure(
            "the body is aligned in evaluation mode (ours: as it trains)",
            (
                Edit(
                    CLIENTS + "clientas.py",
                    "global_proto_batch = model.base(x_batch)",
                    "global_proto_batch = model.train().base(x_batch)",
                ),
            ),
        ),
    ),
}
"""The departures of each method."""

ALIGNMENT_HARNESS: Mapping[str, tuple[Edit, ...]] = {
    "fedpac": (
        Edit(
            CLIENTS + "clientpac.py",
            "\n        self.V, self.h = self.statistics_extraction()",
            "",
        ),
        Edit(
            SERVERS + "serverpac.py",
            "self.Vars.append(client.V)",
            "client.V, client.h = client.statistics_extraction(); self.Vars.append(client.V)",
        ),
    ),
}
"""Expressions that are replaced although they are no departure: statistics are taken when running
statistics have arrived.
"""
