// A step on a mesh of devices: how long it takes, and what a rank holds, as cost.mesh_step and cost.mesh_memory say.
(function () {
  const cost = globalThis.backpassCost;
  const core = globalThis.backpassCalculator;
  const { gradient, layer: LAYER, again: AGAIN, embedding: EMBEDDING, head: HEAD, context: CONTEXT, shards } = cost.mesh;
  const index = BigInt(cost.mesh.index); // bytes of a token, a target, or a position
  const AXES = ["data", "tensor", "context", "pipeline", "chunks", "micro_batch"];
  const OPENING = Object.fromEntries(AXES.map((axis) => [axis, "1"]));

  const over = (a, b) => (a + b - 1n) / b; // rounded up
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const whole = (numbers) => numbers.reduce((a, b) => a + b, 0n);

  // Return the published rates of a cluster's links in the units of the fields, as texts.
  function links(name) {
    const [inside, between, node, latency] = cost.clusters[name];
    return { inside: String(inside / 1e9), between: String(between / 1e9), node: String(node), latency: String(latency * 1e6) };
  }

  // Say what of a mesh cannot be: pairs of a field and its fault. The setting must have none itself.
  function faults({ setting, numbers: n }, texts) {
    const mesh = Object.fromEntries(AXES.map((axis) => [axis, core.integer(texts[axis])]));
    const found = AXES.filter((axis) => !mesh[axis]).map((axis) => [
      axis,
      `expected an integer of at least 1; got ${texts[axis]?.trim() || "nothing"}`,
    ]);
    if (found.length) return found;
    const { data, tensor, context, pipeline, chunks, micro_batch } = mesh;
    const divided = { n_h: n.n_h, ...(setting.family === "llama" ? { n_kv: n.n_kv } : {}), f: n.f, V: n.V };
    for (const [letter, number] of Object.entries(divided)) {
      if (number % tensor) found.push(["tensor", `expected a divisor of ${letter} = ${number}; got ${tensor}`]);
    }
    if (n.s % (context * tensor)) found.push(["context", `expected s to be a multiple of context × tensor = ${context * tensor}; got ${n.s}`]);
    if (n.b % (data * micro_batch)) found.push(["data", `expected b to be a multiple of data × micro-batch = ${data * micro_batch}; got ${n.b}`]);
    if (pipeline > n.L) found.push(["pipeline", `expected at most L = ${n.L}; got ${pipeline}`]);
    if (chunks > n.L) found.push(["chunks", `expected at most L = ${n.L}; got ${chunks}`]);
    if (chunks > 1n && pipeline === 1n) found.push(["chunks", `expected 1 without a pipeline; got ${chunks}`]);
    return found;
  }

  function linkFaults(texts) {
    const found = ["inside", "between", "latency"].map((name) => [name, core.faultOf(texts[name], { zero: name === "latency" })]);
    if (!core.integer(texts.node)) found.push(["node", `expected an integer of at least 1; got ${texts.node?.trim() || "nothing"}`]);
    return found.filter(([, fault]) => fault);
  }

  // Return how many layers each stage has: the ends of several count as a layer more.
  function layersOfStages(layers, stages) {
    const also = Array.from({ length: stages }, (_, i) => Number(stages > 1 && (i === 0 || i === stages - 1)));
    const counts = also.map(() => 1);
    for (let left = layers - stages; left > 0; left -= 1) {
      let least = 0;
      for (let i = 1; i < stages; i += 1) {
        const [one, other] = [counts[i] + also[i], counts[least] + also[least]];
        if (one < other || (one === other && also[i] < also[least])) least = i;
      }
      counts[least] += 1;
    }
    return counts;
  }

  // Return the sizes of a rank: the letters of a network of one layer on one rank of the tensor axis.
  function local({ setting, numbers: n }, { tensor, micro_batch }) {
    const d = setting.family === "llama" ? n.d : n.h / n.n_h;
    const of = { ...n, b: micro_batch, d, L: 1n, L_f: 0n };
    for (const letter of ["n_h", "n_kv", "f", "V"]) of[letter] = n[letter] / tensor;
    return { ...of, ...core.tiles(of) };
  }

  // Return the seconds of a step by what takes them, and the model's utilisation.
  function time(found, texts, link, rateTexts) {
    const mesh = Object.fromEntries(AXES.map((axis) => [axis, core.integer(texts[axis])]));
    const [data, tensor, context, p, chunks, micro] = AXES.map((axis) => Number(mesh[axis]));
    const { setting, numbers: n } = found;
    const { rates, column } = core.ratesOf(rateTexts);
    const width = column ? 4 : 2;
    const [b, s, h, L] = [n.b, n.s, n.h, n.L].map(Number);
    const linkRates = Object.fromEntries(["inside", "between", "latency"].map((name) => [name, Number(link[name].replace(/[,\s]/g, "")) * (name === "latency" ? 1e-6 : 1e9)]));
    const node = Number(core.integer(link.node));

    function collective(name, bytes, axis, span) {
      const elements = Math.ceil(bytes);
      const moves = {
        all_gather: [axis - 1, (axis - 1) * elements],
        reduce_scatter: [axis - 1, (axis - 1) * Math.ceil(elements / axis)],
        shift: axis > 1 ? [1, elements] : [0, 0],
      };
      const [messages, moved] = moves[name];
      return messages * linkRates.latency + moved / (span <= node ? linkRates.inside : linkRates.between);
    }

    const at = core.evaluator(local(found, mesh));
    const parts = { layer: 0, embedding: 0, "last norm": 0, "output head": 0 };
    for (const number of cost.meshes[core.keyOf(setting)].works) {
      const [words, , [products, elements, ...bytes]] = cost.works[number];
      const [part, call, stem, way] = words.map((word) => cost.words[word]);
      if (core.isAbsent({ part, stem, way }, { ...setting, chunked: false })) continue;
      const split = context * (shards.some((start) => call.startsWith(start)) ? tensor : 1);
      const work = { products: Number(at(products)) / split, elements: Number(at(elements)) / split, bytes: Number(at(bytes[column])) / split };
      parts[part] += core.timeOf(work, rates).seconds;
    }
    const head = parts["last norm"] + parts["output head"];

    const rows = (micro * s) / context;
    const stream = rows * h * width;
    const onTensor = ([gathers, scatters]) =>
      gathers * collective("all_gather", stream / tensor, tensor, tensor) + scatters * collective("reduce_scatter", stream, tensor, tensor);
    const ofLayer = onTensor(setting.recompute ? AGAIN : LAYER);
    const keys = (rows * width * 2 * Number(setting.family === "llama" ? n.n_kv * n.d : n.h)) / tensor;
    const onContext =
      CONTEXT[0] * collective("all_gather", keys, context, context * tensor) +
      CONTEXT[1] * collective("reduce_scatter", keys * context, context, context * tensor);

    const stages = layersOfStages(L, p);
    const ends = stages.map((_, i) => [
      (i === 0 ? parts.embedding : 0) + (i === p - 1 ? head : 0),
      (i === 0 ? onTensor(EMBEDDING) : 0) + (i === p - 1 ? onTensor(HEAD) : 0),
    ]);
    const each = parts.layer + ofLayer + onContext;
    const loads = stages.map((count, i) => count * each + sum(ends[i]));
    const busiest = loads.indexOf(Math.max(...loads));
    const [layers, [end, onEnd]] = [stages[busiest], ends[busiest]];

    const [all, , inLayer] = cost.parameters[core.keyOf(setting)].map(core.evaluator(n)).map(Number);
    const parameters = (inLayer * layers + (p === 1 ? all - L * inLayer : Number(n.V * n.h))) / tensor;
    const axis = data * context;
    const span = data > 1 ? data * tensor * context * p : tensor * context;
    const own = parameters / axis;
    const exchange = collective("reduce_scatter", parameters * gradient, axis, span) + collective("all_gather", own * width, axis, span);
    const [flops, ...widths] = cost.adamw;
    const update = core.timeOf({ products: 0, elements: flops * own, bytes: widths[column] * own }, rates).seconds;

    const m = b / (data * micro);
    const once = collective("shift", stream / tensor, p, tensor * context * p);
    const shares = {
      layers: m * layers * parts.layer,
      "embedding and output head": m * end,
      "tensor collectives": m * (layers * ofLayer + onEnd),
      "context collectives": m * layers * onContext,
      "sends between stages": m * 2 * chunks * once,
      bubble: ((p - 1) / chunks) * (layers * each + end + onEnd),
      "gradients and parameters": exchange,
      update,
    };
    const seconds = sum(Object.values(shares));
    const ranks = data * tensor * context * p;
    const plain = core.tally({ ...setting, b: "1", chunked: false, recompute: false, frozen: false });
    const mfu = (convention) => (b * Number(core.totals(plain.rows, convention).model)) / ranks / seconds / rates.products;
    return { ranks, shares, seconds, tokensPerSecond: (b * s) / seconds, mfu };
  }

  // Return the stages on which a rank's actions run, in their order, each with whether it is a forward: one forward, one
  // backward in turn.
  function order(rank, p, m, chunks) {
    const stages = Array.from({ length: chunks }, (_, chunk) => rank + chunk * p);
    const size = chunks > 1 ? p : m;
    const [forwards, backwards] = [[], []];
    for (let first = 0; first < m; first += size) {
      for (const stage of stages) for (let j = 0; j < size; j += 1) forwards.push(stage);
      for (const stage of [...stages].reverse()) for (let j = 0; j < size; j += 1) backwards.push(stage);
    }
    const after = p - rank - 1;
    const ahead = Math.min(chunks === 1 ? after : 2 * after + (chunks - 1) * p, forwards.length);
    const found = forwards.slice(0, ahead).map((stage) => [true, stage]);
    forwards.slice(ahead).forEach((stage, i) => found.push([true, stage], [false, backwards[i]]));
    return found.concat(backwards.slice(forwards.length - ahead).map((stage) => [false, stage]));
  }

  // Return the bytes that the rank of the pipeline holds that holds most, by use, and its place.
  function memory(found, texts, dtype) {
    const mesh = Object.fromEntries(AXES.map((axis) => [axis, core.integer(texts[axis])]));
    const { tensor, context, data, micro_batch } = mesh;
    const [p, chunks] = [Number(mesh.pipeline), Number(mesh.chunks)];
    const { setting, numbers: n } = found;
    const key = core.keyOf(setting);
    const single = dtype === "float32";
    const width = single ? 4n : 2n;
    const rows = (micro_batch * n.s) / context;
    const positions = n.s / context;
    const one = { ...n, b: micro_batch, L: 1n };
    const at = core.evaluator({ ...one, ...core.tiles(one) });
    const saved = Object.fromEntries(
      cost.saved[setting.flash ? `${key} flash` : key].map(([part, ...formulas]) => [part, at(formulas[single ? 1 : 0])]),
    );
    let layer = saved.layer / (tensor * context);
    const d = setting.family === "llama" ? n.d : n.h / n.n_h;
    if (context > 1n && n.n_h > tensor) layer += ((rows * n.n_h) / tensor) * d * width;
    const kept = setting.recompute ? (rows * n.h * width) / tensor : layer;
    const first = rows * (index + 1n) + (setting.family === "gpt2" ? (index * positions) / tensor : 0n);
    const last = saved["last norm"] / (tensor * context) + rows * (n.h * width + (n.V / tensor + 1n) * 4n + index);

    const counts = layersOfStages(Number(n.L), p);
    const sizes = cost.meshes[key].arrays;
    const own = core.evaluator(local(found, mesh));
    const arrays = Object.fromEntries(Object.entries(sizes).map(([where, list]) => [where, list.map(own)]));
    let m = Math.min(Number(n.b / (data * micro_batch)), 2 * p);
    if (chunks > 1) m = p * Math.ceil(m / p);
    let most;
    for (let place = 0; place < p; place += 1) {
      const inLayers = Array.from({ length: counts[place] }, () => arrays.layer).flat();
      const list = [...(place === 0 ? arrays.first : []), ...inLayers, ...(place === p - 1 ? arrays.last : [])];
      if (setting.tied && place === p - 1 && p > 1) list.push(arrays.first[0]);
      const [count, shard] = [whole(list), whole(list.map((length) => over(length, data * context)))];
      const of = new Map();
      for (let chunk = 0; chunk < chunks; chunk += 1) {
        const stage = place + chunk * p;
        const layers = Math.floor(((chunk + 1) * counts[place]) / chunks) - Math.floor((chunk * counts[place]) / chunks);
        of.set(stage, Number(BigInt(layers) * kept + (stage === 0 ? first : 0n) + (stage === p * chunks - 1 ? last : 0n)));
      }
      let [held, activations] = [0, 0];
      for (const [forward, stage] of order(place, p, m, chunks)) {
        held += forward ? of.get(stage) : -of.get(stage);
        activations = Math.max(activations, held);
      }
      const bytes = {
        weights: count * width,
        "sums of gradients, float32": count * 4n,
        [single ? "shards of AdamW's moments" : "shards of master weights and AdamW's moments"]: (single ? 8n : 12n) * shard,
        activations: BigInt(activations),
        "one layer, recomputed": setting.recompute ? layer : 0n,
        tables: setting.family === "llama" ? positions * n.d * width : 0n,
      };
      const total = whole(Object.values(bytes));
      if (!most || total > most.total) most = { place, bytes, total };
    }
    return most;
  }

  globalThis.backpassMesh = { AXES, OPENING, faults, layersOfStages, linkFaults, links, memory, time };
})();
