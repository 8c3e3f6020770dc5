// The calculators on the page: fields, results, and the settings in the address. calculator_core.js and
// calculator_mesh.js compute.
(function () {
  const root = document.getElementById("calculator");
  const cost = globalThis.backpassCost;
  const core = globalThis.backpassCalculator;
  const onMesh = globalThis.backpassMesh;
  if (!root || !cost || !core || !onMesh) return;
  const { BOUNDS, PASSES, WAYS, fixed, grouped, scientific, significant } = core;

  const FAMILIES = {
    gpt2: "GPT-2",
    llama: "Llama, Qwen2, Qwen3",
    encoder: "encoder, layers alone",
    seq2seq: "encoder with decoder, layers alone",
  };
  const FLAGS = {
    tied: "tied: the output head is the table of tokens",
    biases: "biases on queries, keys and values (Qwen2)",
    query_key_norm: "norms of queries and keys (Qwen3)",
    norm_first: "norms before the blocks, not after the sums",
    final_norm: "a norm after the last layer",
    flash: "FlashAttention",
    chunked: "chunked output head: its gradients are computed in the forward",
    recompute: "recompute the layers in the backward",
    frozen: "freeze the embeddings and the first L_f layers",
  };
  const NUMBERS = ["b", "s", "t", "h", "n_h", "n_kv", "d", "f", "V", "L", "L_e", "L_d", "S", "L_f"];
  const RUN = {
    tokens: "tokens of the run",
    peak: "peak of a GPU, TFLOP/s",
    mfu: "MFU, %",
    devices: "GPUs that share the hours",
    power: "power of a GPU with its share of the rest, W",
    energyPrice: "price of a kWh",
    hourPrice: "price of a GPU-hour",
  };
  const DTYPES = ["bfloat16", "float16", "float32"];
  const MEMORY = {
    weights: ["parameters and saved arrays", DTYPES],
    gradients: ["gradients", DTYPES],
    master: ["copy of the trained parameters", ["float32", "none"]],
    moments: ["AdamW's moments", ["float32", "bfloat16"]],
  };
  // Published formulas, by their names in the package.
  const RULES = {
    "6n-all": "6n-all: 6·N·tokens, N all parameters",
    "6n": "6n: 6·N·tokens, N the matrices of the layers",
    palm: "palm: (6·N + 12·L·n_h·d·s)·tokens, N all parameters",
  };
  const RATES = {
    products: "matrix products, TFLOP/s",
    elements: "everything else, TFLOP/s",
    bandwidth: "memory, TB/s",
    call: "time of a call that computes almost nothing, µs",
  };
  const MESH = {
    data: "data",
    tensor: "tensor",
    context: "context",
    pipeline: "pipeline",
    chunks: "chunks of a stage",
    micro_batch: "micro-batch, sequences",
  };
  const LINKS = {
    inside: "links within a machine, GB/s",
    between: "links between machines, GB/s",
    node: "GPUs of a machine",
    latency: "latency of a message, µs",
  };
  const OPENING_LINKS = onMesh.links("h100");
  // Reported runs reach two thirds of the predicted rate: see the page on a step on 16,384 GPUs.
  const REACHED = [2n, 3n];
  const UNIT = 1e9; // tokens, where the run's are not given
  const DAYS = 2 * 86400; // seconds above which the plan has days instead of hours
  const MACHINE = { dtype: DTYPES[0], ...core.published("h100", DTYPES[0]) };
  // The convention of most published MFUs, which is that of the time's MFU.
  const OPENING = "products-whole";
  const START = { ...cost.presets["llama-3-8b"], b: "1", s: "8192", flash: true, chunked: false, recompute: false, frozen: false, L_f: "0" };

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.flat().filter((child) => child !== undefined));
    return made;
  }

  // Return a text as nodes, in which n_h has a subscript.
  const typeset = (text) =>
    text.split(/\b(n_h|n_kv|L_f|L_e|L_d)\b/).map((part, i) => {
      if (i % 2 === 0) return part;
      const [letter, below] = part.split("_");
      return element("var", {}, letter, element("sub", {}, below));
    });

  const select = (id, names, labels = names) =>
    element("select", { id }, names.map((name, i) => element("option", { value: name }, labels[i])));
  const labelled = (label, input, shape = "calculator-field") =>
    element("div", { class: shape }, element("label", { for: input.id, id: `${input.id}-label` }, label), input);
  const text = (id, more = {}) => element("input", { id, type: "text", autocomplete: "off", spellcheck: "false", ...more });
  const check = (id, label) => {
    const box = element("input", { id, type: "checkbox" });
    return element("div", { class: "calculator-check" }, box, element("label", { for: id }, typeset(label)));
  };
  const at = (id) => document.getElementById(id);

  // The fields of a setting

  function fieldsOf(which) {
    const id = (name) => `${which}-${name}`;
    const presets = Object.keys(cost.presets);
    const names = presets.map((name) => [name, ...(cost.aliases[name] ?? [])].join(", "));
    const letters = NUMBERS.map((letter) => {
      const label = element("label", { for: id(letter) }, element("b", {}, typeset(letter)), ` ${core.MEANINGS[letter]}`);
      return element("div", { class: "calculator-field" }, label, text(id(letter), { inputmode: "numeric" }));
    });
    const config = element("textarea", { id: id("config"), rows: 6, spellcheck: "false", placeholder: '{ "model_type": "llama", … }' });
    const read = element("button", { type: "button", class: "calculator-button", onclick: () => paste(which) }, "Read the config");
    return element(
      "section",
      { class: "calculator-setting", id: `calculator-${which}`, "aria-label": `Setting ${which}` },
      element("h3", {}, `Setting ${which}`),
      labelled("preset", select(id("preset"), ["", ...presets], ["own sizes", ...names])),
      element(
        "details",
        {},
        element("summary", {}, "paste a Hugging Face config.json"),
        labelled("config.json", config),
        read,
        element("p", { id: id("read"), role: "status", class: "calculator-note" }),
      ),
      labelled("family", select(id("family"), Object.keys(FAMILIES), Object.values(FAMILIES))),
      element("div", { class: "calculator-letters" }, letters),
      Object.entries(FLAGS).map(([flag, label]) => check(id(flag), label)),
      element("p", { id: id("note"), role: "status", class: "calculator-note" }),
      element("div", { id: id("faults"), role: "alert", class: "calculator-faults" }),
    );
  }

  // State: what the fields say

  // While the run follows, its peak and its MFU are those of the predicted time. While the memory follows, the dtype of
  // the parameters is the time's.
  const state = {
    convention: OPENING, compare: false, A: { ...START }, B: { ...START }, time: { ...MACHINE },
    capacity: core.capacity("h100"), run: {}, runFollows: false, memory: {}, memoryFollows: true, mesh: { ...onMesh.OPENING }, links: { ...OPENING_LINKS },
  }; // prettier-ignore

  const letterRow = (which, name) => at(`${which}-${name}`).parentElement;

  function write() {
    at("convention").value = state.convention;
    at("compare").checked = state.compare;
    for (const which of ["A", "B"]) {
      const setting = state[which];
      at(`${which}-family`).value = setting.family;
      for (const letter of NUMBERS) at(`${which}-${letter}`).value = setting[letter] ?? "";
      for (const flag of Object.keys(FLAGS)) at(`${which}-${flag}`).checked = Boolean(setting[flag]);
    }
    at("time-machine").value = machineOf(state.time);
    at("plan-capacity").value = state.capacity;
    for (const name of Object.keys(MACHINE)) at(`time-${name}`).value = state.time[name];
    for (const name of Object.keys(RUN)) at(`run-${name}`).value = state.run[name] ?? "";
    for (const name of Object.keys(MESH)) at(`mesh-${name}`).value = state.mesh[name];
    for (const name of Object.keys(LINKS)) at(`links-${name}`).value = state.links[name];
    if (state.memoryFollows) state.memory.weights = state.time.dtype;
    for (const [name, [, types]] of Object.entries(MEMORY)) at(`memory-${name}`).value = state.memory[name] ?? types[0];
  }

  function read() {
    state.convention = at("convention").value;
    state.compare = at("compare").checked;
    for (const which of ["A", "B"]) {
      const setting = state[which];
      setting.family = at(`${which}-family`).value;
      for (const letter of NUMBERS) setting[letter] = at(`${which}-${letter}`).value;
      for (const flag of Object.keys(FLAGS)) setting[flag] = at(`${which}-${flag}`).checked;
    }
    for (const name of Object.keys(MACHINE)) state.time[name] = at(`time-${name}`).value;
    state.capacity = at("plan-capacity").value;
    for (const name of Object.keys(RUN)) state.run[name] = at(`run-${name}`).value;
    for (const name of Object.keys(MESH)) state.mesh[name] = at(`mesh-${name}`).value;
    for (const name of Object.keys(LINKS)) state.links[name] = at(`links-${name}`).value;
    for (const name of Object.keys(MEMORY)) state.memory[name] = at(`memory-${name}`).value;
  }

  // In the address, setting A has plain names, and those of B begin with "B.". What is empty or off is left out.
  function address() {
    const found = { convention: state.convention };
    const settings = state.compare ? { "": state.A, "B.": state.B } : { "": state.A };
    for (const [prefix, setting] of Object.entries(settings)) {
      found[`${prefix}family`] = setting.family;
      for (const letter of core.lettersOf(setting)) found[prefix + letter] = core.integer(setting[letter]) ?? setting[letter];
      for (const flag of core.optionsOf(setting)) if (setting[flag]) found[prefix + flag] = "1";
    }
    for (const [name, value] of Object.entries(state.time)) if (value !== MACHINE[name]) found[`time.${name}`] = value;
    if (state.capacity !== core.capacity("h100")) found.capacity = state.capacity;
    for (const [name, value] of Object.entries(state.run)) if (value) found[`run.${name}`] = value;
    if (state.runFollows) found["run.follows"] = "1";
    for (const [name, value] of Object.entries(state.mesh)) if (value !== onMesh.OPENING[name]) found[`mesh.${name}`] = value;
    for (const [name, value] of Object.entries(state.links)) if (value !== OPENING_LINKS[name]) found[`links.${name}`] = value;
    for (const [name, value] of Object.entries(state.memory)) {
      if (name === "weights" ? !state.memoryFollows : value !== MEMORY[name][1][0]) found[`memory.${name}`] = value;
    }
    return core.toHash(found);
  }

  // Browsers limit how often an address changes, so it follows when the typing rests.
  let resting;
  function toAddress() {
    clearTimeout(resting);
    resting = setTimeout(() => history.replaceState(null, "", address()), 200);
  }

  // Read the settings in the address. What cannot be read keeps the value that the page opens with, and is reported.
  function fromAddress() {
    const found = core.fromHash(location.hash);
    if (!Object.keys(found).length) return;
    const wrong = [];
    const known = new Set();
    const given = (name, otherwise) => (known.add(name), found[name] ?? otherwise);
    const oneOf = (name, values, otherwise) => {
      const value = given(name, otherwise);
      if (value === otherwise || values.includes(value)) return value;
      wrong.push(`${name}: expected ${values.length > 1 ? "one of " : ""}${values.join(", ")}; got '${value}'`);
      return otherwise;
    };
    const isOn = (name) => oneOf(name, ["1"]) === "1";
    state.convention = oneOf("convention", Object.keys(cost.conventions), OPENING);
    state.compare = Object.keys(found).some((name) => name.startsWith("B."));
    for (const [prefix, which] of Object.entries(state.compare ? { "": "A", "B.": "B" } : { "": "A" })) {
      forget(which);
      const family = oneOf(`${prefix}family`, Object.keys(core.SIZES));
      state[which] = family ? { family, L_f: "0" } : { ...START };
      for (const letter of NUMBERS) state[which][letter] = given(prefix + letter, state[which][letter] ?? "");
      for (const flag of Object.keys(FLAGS)) state[which][flag] = isOn(prefix + flag) || (!family && Boolean(START[flag]));
    }
    state.time.dtype = oneOf("time.dtype", DTYPES, MACHINE.dtype);
    for (const name of Object.keys(RATES)) state.time[name] = given(`time.${name}`, MACHINE[name]);
    state.capacity = given("capacity", core.capacity("h100"));
    for (const name of Object.keys(RUN)) state.run[name] = given(`run.${name}`, "");
    state.runFollows = isOn("run.follows");
    for (const name of Object.keys(MESH)) state.mesh[name] = given(`mesh.${name}`, onMesh.OPENING[name]);
    for (const name of Object.keys(LINKS)) state.links[name] = given(`links.${name}`, OPENING_LINKS[name]);
    state.memoryFollows = !("memory.weights" in found);
    for (const [name, [, types]] of Object.entries(MEMORY)) state.memory[name] = oneOf(`memory.${name}`, types, types[0]);
    if (state.convention !== OPENING) at("calculator-advanced").open = true;
    const others = Object.keys(found).filter((name) => !known.has(name));
    if (others.length) wrong.push(`The address has unknown names, which are ignored: ${others.join(", ")}`);
    at("address-faults").replaceChildren(...wrong.map((fault) => element("p", {}, fault)));
  }

  function presetOf(setting) {
    const plain = (value) => (typeof value === "string" ? String(core.integer(value) ?? value) : value);
    const same = (preset) => Object.entries(preset).every(([name, value]) => plain(setting[name]) === value);
    return Object.keys(cost.presets).find((name) => same(cost.presets[name])) ?? "";
  }

  // Return the machine whose published rates these are; "" for own rates.
  const machineOf = ({ dtype, ...rates }) =>
    Object.keys(cost.machines).find((name) => Object.entries(core.published(name, dtype)).every(([rate, value]) => rates[rate] === value)) ?? "";

  // Lower the length of the sequences to the number of learned positions, and say so.
  function fit(which) {
    const longest = core.longest(state[which]);
    if (longest === undefined) return;
    at(`${which}-note`).textContent = `s was lowered from ${grouped(core.integer(state[which].s))} to S = ${grouped(longest)}, the number of learned positions.`;
    state[which].s = String(longest);
  }

  // Remove what was said of a setting before it changed.
  function forget(which) {
    for (const name of ["read", "note"]) at(`${which}-${name}`).textContent = "";
    at(`${which}-read`).classList.remove("calculator-refused");
  }

  function paste(which) {
    const status = at(`${which}-read`);
    forget(which);
    try {
      Object.assign(state[which], core.readConfig(at(`${which}-config`).value));
      status.textContent = "The sizes of this config are in the fields below.";
      fit(which);
      write();
      update();
    } catch (error) {
      status.textContent = `${error.message}\nStill showing ${presetOf(state[which]) || "the sizes in the fields"}.`;
      status.classList.add("calculator-refused");
    }
  }

  // Results

  const scroll = (label, table) => element("div", { class: "calculator-scroll", role: "group", tabindex: 0, "aria-label": label }, table);

  function tableOf(caption, headings, rows) {
    const head = element("tr", {}, headings.map((heading) => (heading ? element("th", { scope: "col" }, heading) : element("td"))));
    const body = rows.map(([first, ...cells]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, first),
        cells.map((cell) => (cell instanceof Node && cell.tagName === "TD" ? cell : element("td", {}, cell))),
      ),
    );
    const table = element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, body));
    return scroll(caption, table);
  }

  const exactly = (number) => {
    const [short, long] = [scientific(number), grouped(number)];
    const more = short === long ? [] : [element("span", { class: "calculator-short" }, short)];
    return element("td", {}, element("span", { class: "calculator-exact" }, long), more);
  };
  const headingsOf = (settings) => settings.map(({ which }) => (state.compare ? which : "FLOPs"));

  function summary(settings) {
    const line = (name, of) => [name, ...settings.map((each) => of(each))];
    const rows = [
      ...[...WAYS, "total"].map((way) => line(way, (each) => exactly(each.flops[way]))),
      line("model's FLOPs: nothing computed twice", (each) => exactly(each.flops.model)),
      line("backward and recomputation ÷ forward", ({ flops }) =>
        fixed([flops.backward + flops.recomputation, flops.forward], 4),
      ),
      line("total a token, rounded", ({ flops, numbers }) => exactly(BigInt(fixed([flops.total, numbers.b * numbers.s], 0).replaceAll(",", "")))),
      line("N, parameters", (each) => exactly(each.parameters)),
      line("parameters that are trained", (each) => exactly(each.trained)),
      ...[...new Set(settings.flatMap((each) => Object.keys(core.rules(each))))].map((rule) =>
        line(typeset(RULES[rule]), (each) => {
          const said = core.rules(each)[rule];
          if (said === undefined) return "";
          const cell = exactly(said);
          cell.append(element("span", { class: "calculator-short" }, `${fixed([said, each.flops.model], 4)} of the model's`));
          return cell;
        }),
      ),
    ];
    return tableOf(`FLOPs of a step, ${state.convention}: ${cost.conventions[state.convention]}`, ["", ...headingsOf(settings)], rows);
  }

  const groupOf = (row) => (row.part === row.call ? row.part : `${row.part}: ${row.call}`);

  const NONE = { forward: 0n, backward: 0n, recomputation: 0n };
  const sum = (ways) => WAYS.reduce((all, way) => all + ways[way], 0n);
  const SMALL = 200n; // an operation with less than a 200th of the FLOPs has no row of its own

  // Return the FLOPs of each way by operation, those of all layers together.
  function byOperation(rows) {
    const groups = new Map();
    for (const row of rows) {
      const name = groupOf(row).replace(/^(frozen|first trained) layer:/, "layer:").replace(/^layer:/, "layers:");
      if (!groups.has(name)) groups.set(name, { ...NONE });
      groups.get(name)[row.way] += row.flops[state.convention];
    }
    return groups;
  }

  function breakdown(settings) {
    const groups = settings.map(({ rows }) => byOperation(rows));
    const totals = settings.map(({ flops }) => flops.total || 1n);
    const names = new Set(groups.flatMap((each) => [...each.keys()]));
    const large = [];
    const others = settings.map(() => ({ ...NONE }));
    let gathered = 0;
    for (const name of names) {
      const found = groups.map((each) => each.get(name) ?? NONE);
      if (found.some((ways, i) => sum(ways) * SMALL >= totals[i])) {
        large.push([name, found]);
      } else if (found.some(sum)) {
        gathered += 1;
        found.forEach((ways, i) => WAYS.forEach((way) => (others[i][way] += ways[way])));
      }
    }
    large.sort(([, [one]], [, [other]]) => Number(sum(other) > sum(one)) - Number(sum(one) > sum(other)));
    if (gathered) large.push([`${gathered} more, each below 0.5 %`, others]);
    const share = (flops, i) => Number((flops * 1000000n) / totals[i]) / 10000;
    const widest = Math.max(...large.flatMap(([, found]) => found.map((ways, i) => share(sum(ways), i))), 0.01);
    const bar = (ways, i) =>
      element(
        "span",
        { class: "calculator-bar" },
        WAYS.map((way) => element("span", { class: `calculator-${way}`, style: `width: ${(100 * share(ways[way], i)) / widest}%` })),
      );
    const rows = large.map(([name, found]) => [
      name,
      element("td", { "aria-hidden": "true" }, found.map(bar)),
      ...found.flatMap((ways, i) => [`${fixed([100n * sum(ways), totals[i]], 2)} %`, scientific(sum(ways))]),
    ]);
    const legend = element(
      "p",
      { class: "calculator-legend" },
      WAYS.map((way) => element("span", {}, element("span", { class: `calculator-key calculator-${way}` }), ` ${way}`)),
      state.compare ? "The upper bar is A's, the lower B's." : "",
    );
    const headings = settings.flatMap(({ which }) => (state.compare ? [`${which}, share`, `${which}, FLOPs`] : ["share", "FLOPs"]));
    return [legend, tableOf("Where the FLOPs are: the share of each operation", ["", "", ...headings], rows)];
  }

  // Return the exact formula of a row: how many parts there are, times the formula of one.
  function formulaOf(row) {
    const column = Object.keys(cost.conventions).indexOf(state.convention);
    const [repeats, once] = [cost.texts[row.times], cost.texts[row.counts[column]]];
    return repeats === "1" ? once : `${repeats.includes(" ") ? `(${repeats})` : repeats} × [${once}]`;
  }

  function terms(settings) {
    const found = new Map();
    settings.forEach(({ rows }, i) => {
      for (const row of rows) {
        const key = [row.part, row.call, row.stem, row.way, row.what].join("|");
        if (!found.has(key)) found.set(key, []);
        found.get(key)[i] = row;
      }
    });
    const rows = [...found.values()].map((each) => {
      const row = each.find(Boolean);
      const [times, m, k, n] = row.shape;
      const name = `${row.repeats > 1n ? `${grouped(row.repeats)} × ` : ""}${groupOf(row)}`;
      const what = `${row.way}${row.again && row.way !== "recomputation" ? ", again" : ""}: ${row.what}`;
      const heading = [element("span", {}, name), element("span", { class: "calculator-short" }, `${what}; reads ${row.needs}`)];
      const shape = `${times > 1n ? `${grouped(times)} × ` : ""}[${m}, ${k}] @ [${k}, ${n}]`;
      const formula = element("span", { class: "calculator-formula" }, typeset(formulaOf(row)));
      return [
        heading,
        ...settings.map((_, i) => (each[i] ? exactly(each[i].flops[state.convention]) : "")),
        element("td", {}, row.shape.length ? shape : ""),
        element("details", {}, element("summary", { "aria-label": `formula of ${name}, ${what}` }, "formula"), formula),
      ];
    });
    const notes = settings
      .filter(({ setting }) => setting.flash)
      .map(({ which, setting, numbers: { scores, tiles, key_tiles } }) => {
        const causal = `FlashAttention computes scores = ${grouped(scores)} in a head under a causal mask; the queries meet tiles = ${grouped(tiles)} in all. `;
        const whole = `Without a mask, FlashAttention has key_tiles = ${grouped(key_tiles)} tiles across the keys. `;
        const said = { encoder: whole, seq2seq: causal + whole }[setting.family] ?? causal;
        return (state.compare ? `${which}: ` : "") + said;
      });
    if (state.compare) notes.push("Products and formulas are those of the first setting that has the term.");
    const note = element("p", { class: "calculator-note" }, notes);
    return [note, tableOf("Every term", ["", ...headingsOf(settings), "products", "exact formula"], rows)];
  }

  const inUnits = (bytes) => {
    const [unit, power] = bytes < 2n ** 30n ? ["MiB", 20n] : ["GiB", 30n];
    return `${fixed([bytes, 2n ** power], 3)} ${unit}`;
  };

  function memory(settings) {
    const found = settings.map((each) => core.memory(each, state.memory));
    const names = [...new Set(found.flatMap(Object.keys))].filter((name) => found.some((each) => each[name]));
    const rows = names.map((name) => [name, ...found.map((each) => each[name] ?? 0n)]);
    rows.push(["total", ...found.map((each) => Object.values(each).reduce((a, b) => a + b))]);
    const table = tableOf(
      "Bytes of a step, by use; the total is a sum, not the peak",
      ["", ...settings.map(({ which }) => (state.compare ? which : "bytes"))],
      rows.map(([name, ...bytes]) => [
        name,
        ...bytes.map((each) => element("td", {}, element("span", { class: "calculator-exact" }, grouped(each)), element("span", { class: "calculator-short" }, inUnits(each)))),
      ]),
    );
    return [table, element("p", { class: "calculator-note" }, "1 MiB is 2²⁰ bytes, and 1 GiB is 2³⁰ bytes.")];
  }

  // The plan: what fits, how long it takes, and what it costs, on the mesh if it has several ranks, else on one GPU

  const isMany = () => ["data", "tensor", "context", "pipeline"].some((axis) => core.integer(state.mesh[axis]) !== 1n);

  // Return the step on a mesh of several ranks, or the first fault of the mesh.
  function onMany(each) {
    if (!isMany()) return {};
    const faults = [...meshFaults(each).map(([name, fault]) => [MESH[name], fault]), ...onMesh.linkFaults(state.links).map(([name, fault]) => [LINKS[name], fault])];
    if (faults.length) return { refusal: faults[0].join(": ") };
    return { step: onMesh.time(each, state.mesh, state.links, state.time) };
  }

  function planOf(each) {
    if (core.rateFaults(state.time).length) return { ranks: 1n, bytes: bytesOf(each) };
    const { refusal, step } = onMany(each);
    const { seconds } = step ?? core.time(each, state.time);
    const ranks = BigInt(step?.ranks ?? 1);
    const bytes = step ? onMesh.memory(each, state.mesh, state.time.dtype).total : bytesOf(each);
    const tokens = core.decimal(state.run.tokens, { suffixes: true });
    const asked = (tokens ? Number(tokens[0]) / Number(tokens[1]) : UNIT) / Number(each.numbers.b * each.numbers.s);
    return { refusal, ranks, bytes, seconds, run: (tokens ? Math.ceil(asked) : asked) * seconds, tokens: tokens ? state.run.tokens.trim() : "10⁹" };
  }

  const bytesOf = (each) => Object.values(core.memory(each, state.memory)).reduce((a, b) => a + b);

  function plan(settings) {
    const fault = core.faultOf(state.capacity, {});
    at("plan-capacity").setAttribute("aria-invalid", String(Boolean(fault)));
    const gib = fault ? undefined : Number(state.capacity.replaceAll(",", ""));
    const slower = (value) => (value * Number(REACHED[1])) / Number(REACHED[0]);
    const price = core.decimal(state.run.hourPrice);
    const perHour = price && Number(price[0]) / Number(price[1]);
    const machine = machineOf(state.time);
    const rates = machine ? `the ${machine.toUpperCase()}'s published peaks` : "the rates below";
    const toData = () => element("a", { href: "#mesh-data", onclick: showData }, "data");
    return settings.map((each) => {
      const { refusal, ranks, bytes, seconds, run, tokens } = planOf(each);
      const held = Number(bytes) / 2 ** 30;
      const fits = gib === undefined ? undefined : held <= gib;
      const where = ranks > 1n ? [`the fullest of ${grouped(ranks)} GPUs`] : refusal || !cost.meshes[each.setting.family] ? ["one GPU"] : ["one GPU (set ", toData(), " for more)"];
      const memory = [`: ${significant(held)}${gib === undefined ? "" : ` of ${significant(gib)}`} GiB on `, ...where];
      const lines = [element("p", { class: `calculator-fits-${fits}` }, element("b", {}, fits === undefined ? "Memory" : fits ? "✓ Fits" : "✗ Does not fit"), memory)];
      if (refusal) lines.unshift(element("p", { class: "calculator-fits-false" }, element("b", {}, "Not on this mesh"), `: ${refusal}. The plan is of one GPU.`));
      if (seconds !== undefined) {
        const costs = (of) => {
          const hours = (of * Number(ranks)) / 3600;
          const lasts = of < DAYS ? (ranks > 1n ? [`${significant(of / 3600)} h`] : []) : [`${significant(of / 86400)} days`];
          return [...lasts, `${significant(hours)} GPU-hours`, ...(perHour ? [`price ${significant(hours * perHour)}`] : [])].join(", ");
        };
        lines.push(element("p", {}, element("b", {}, "A step"), `: ${significant(seconds)} s at best (${rates}), ${significant(slower(seconds))} s as runs reach`));
        const on = ranks > 1n ? `on ${grouped(ranks)} GPUs` : "on one GPU";
        lines.push(element("p", {}, element("b", {}, `${tokens} tokens`), ` ${on}: ${costs(run)} at best; ${costs(slower(run))} as runs reach`));
      }
      return element("div", {}, state.compare ? element("b", { class: "calculator-which" }, each.which) : "", lines);
    });
  }

  // The address of the page stores the settings, so the link does not change it.
  function showData(event) {
    event.preventDefault();
    at("mesh-data").scrollIntoView({ block: "center" });
    at("mesh-data").focus({ preventScroll: true });
  }

  // Show what is wrong with the numbers of a form, beside its fields.
  function refuse(form, labels, faults) {
    for (const name of Object.keys(labels)) at(`${form}-${name}`).setAttribute("aria-invalid", String(faults.some(([which]) => which === name)));
    at(`${form}-faults`).replaceChildren(...faults.map(([name, fault]) => element("p", {}, `${labels[name]}: ${fault}`)));
    return faults.length > 0;
  }

  const inMilliseconds = (seconds) => (seconds ? significant(1e3 * seconds) : "");

  const inAll = (bounds) => BOUNDS.reduce((all, bound) => all + bounds[bound], 0);

  // Return the table of a setting's passes. Only the bounds that occur have a column.
  function timeOfPasses(which, found, bounds, longest) {
    const bar = (of) =>
      element(
        "span",
        { class: "calculator-bar" },
        bounds.map((bound) => element("span", { class: `calculator-by-${bound}`, style: `width: ${(100 * of[bound]) / longest}%` })),
      );
    const cells = (of) => [inAll(of), ...bounds.map((bound) => of[bound])].map(inMilliseconds);
    const ways = PASSES.filter((way) => found[way]);
    const rows = ways.map((way) => [way, element("td", { "aria-hidden": "true" }, bar(found[way])), ...cells(found[way])]);
    const total = Object.fromEntries(BOUNDS.map((bound) => [bound, ways.reduce((all, way) => all + found[way][bound], 0)]));
    rows.push(["total", "", ...cells(total)]);
    return tableOf(`${which}Milliseconds of a step, by what bounds the calls`, ["", "", "ms", ...bounds], rows);
  }

  function timeOfCalls(which, { spans, seconds }) {
    const rows = spans.map((span) => [
      [
        element("span", {}, `${span.repeats > 1n ? `${grouped(span.repeats)} × ` : ""}${groupOf(span)}`),
        element("span", { class: "calculator-short" }, `${span.way}, bound by ${span.bound}`),
      ],
      inMilliseconds(span.total),
      `${(100 * (span.total / seconds)).toFixed(2)} %`,
      ...[span.products, span.elements, span.bytes].map(scientific),
    ]);
    const headings = ["", "ms in all", "share", "FLOPs of products", "other FLOPs", "bytes"];
    return tableOf(`${which}Every call: the time of all that are alike, and the work of one`, headings, rows);
  }

  const ABOVE =
    "An MFU above 100 % counts FLOPs that do not run, such as masked scores under products-whole, or counts other FLOPs " +
    "than those of products while their rate is above that of products.";

  function time(settings) {
    if (refuse("time", RATES, core.rateFaults(state.time))) return [];
    const times = settings.map((each) => core.time(each, state.time));
    const passes = times.map(core.passes);
    const every = passes.flatMap(Object.values);
    const bounds = BOUNDS.filter((bound) => every.some((of) => of[bound]));
    const longest = Math.max(...every.map(inAll));
    const names = settings.map(({ which }) => (state.compare ? `${which}: ` : ""));
    const line = (name, of) => [name, ...times.map((each) => of(each))];
    const percent = (share) => `${significant(100 * share)} %`;
    const summary = [
      line("seconds a step", (each) => significant(each.seconds)),
      line("tokens a second", (each) => significant(each.tokensPerSecond)),
      line("MFU, products-whole: the model's products with all scores", (each) => percent(each.mfu("products-whole"))),
      line("HFU, products: the products that run", (each) => percent(each.hfu("products"))),
    ];
    const own = `MFU, ${state.convention}`;
    if (state.convention !== "products-whole") summary.push(line(own, (each) => percent(each.mfu(state.convention))));
    const above = times.some((each) => [state.convention, "products-whole"].some((name) => each.mfu(name) > 1));
    const legend = element(
      "p",
      { class: "calculator-legend" },
      bounds.map((bound) => element("span", {}, element("span", { class: `calculator-key calculator-by-${bound}` }), ` ${bound}`)),
    );
    const open = at("calculator-calls").open;
    at("calculator-calls-inside").replaceChildren(...(open ? times.map((each, i) => timeOfCalls(names[i], each)) : []));
    return [
      tableOf("Time of a step, and utilisation of the machine", ["", ...settings.map(({ which }) => (state.compare ? which : "predicted"))], summary),
      legend,
      ...passes.map((each, i) => timeOfPasses(names[i], each, bounds, longest)),
      above ? element("p", { class: "calculator-note" }, ABOVE) : "",
      machineOf(state.time) ? element("p", { class: "calculator-note" }, "Published peaks give a lower bound of the time.") : "",
      onMany(settings[0]).step ? "" : useMfu(settings),
    ];
  }

  function useMfu(settings) {
    const use = () => {
      state.runFollows = true;
      follow(settings);
      write();
      update();
      at("run-mfu").focus();
    };
    return element("button", { type: "button", class: "calculator-button", onclick: use }, `Use ${state.compare ? "A's" : "this"} MFU under ${state.convention} for the whole run`);
  }

  // Return the tables of a step on a mesh: what takes its time, and what a rank holds. A setting that cannot run there is
  // left out, with its faults.
  function mesh(settings) {
    const own = settings.map((each) => ({ ...each, faults: meshFaults(each) }));
    const wrong = own.flatMap(({ which, faults }) => faults.map(([name, fault]) => [name, (state.compare ? `${which}: ` : "") + fault]));
    const bad = [refuse("mesh", MESH, wrong), refuse("links", LINKS, onMesh.linkFaults(state.links)), core.rateFaults(state.time).length > 0];
    const shown = bad[1] || bad[2] ? [] : own.filter(({ faults }) => !faults.length);
    if (!shown.length) return [];
    const times = shown.map((each) => onMesh.time(each, state.mesh, state.links, state.time));
    const held = shown.map((each) => onMesh.memory(each, state.mesh, state.time.dtype));
    const headings = (alone) => ["", ...shown.map(({ which }) => (state.compare ? which : alone))];
    const line = (name, of) => [name, ...times.map((each) => of(each))];
    const summary = [
      line("ranks", (each) => grouped(each.ranks)),
      line("seconds a step", (each) => significant(each.seconds)),
      line("tokens a second", (each) => significant(each.tokensPerSecond)),
      line(`MFU, ${state.convention}`, (each) => `${significant(100 * each.mfu(state.convention))} %`),
    ];
    const parts = Object.keys(times[0].shares).filter((name) => times.some((each) => each.shares[name]));
    const shares = parts.map((name) =>
      line(name, ({ shares: of, seconds }) =>
        element("td", {}, element("span", { class: "calculator-exact" }, inMilliseconds(of[name]) || "0"), element("span", { class: "calculator-short" }, `${((100 * of[name]) / seconds).toFixed(1)} %`)),
      ),
    );
    const uses = [...new Set(held.flatMap(({ bytes }) => Object.keys(bytes)))].filter((name) => held.some(({ bytes }) => bytes[name]));
    const size = (bytes) => element("td", {}, element("span", { class: "calculator-exact" }, grouped(bytes)), element("span", { class: "calculator-short" }, inUnits(bytes)));
    const memory = uses.map((name) => [name, ...held.map(({ bytes }) => size(bytes[name] ?? 0n))]);
    memory.push(["total", ...held.map(({ total }) => size(total))]);
    const places = state.mesh.pipeline === "1" ? "" : `, at place ${[...new Set(held.map(({ place }) => place))].join(" and ")} of the pipeline`;
    return [
      tableOf("A step on this mesh", headings("predicted"), summary),
      tableOf("Milliseconds of the step, by what takes them", headings("ms"), shares),
      tableOf(`Bytes on the rank that holds most${places}`, headings("bytes"), memory),
      onMany(settings[0]).step ? useMfu(settings) : "",
    ];
  }

  function meshFaults(each) {
    if (!cost.meshes[`${each.setting.family}`]) return [["data", "expected a network with an output head"]];
    if (each.setting.frozen) return [["data", "expected a network in which everything is trained"]];
    return onMesh.faults(each, state.mesh);
  }

  // Give the run the peak and the MFU of the first setting's predicted time, and the number of ranks if there are several;
  // none if the rates cannot be read.
  function follow([first]) {
    const known = first && !core.rateFaults(state.time).length;
    const { seconds, ranks } = known ? planOf(first) : {};
    const mfu = known && Number(first.flops.model) / (seconds * Number(ranks) * core.ratesOf(state.time).rates.products);
    state.run.peak = known ? state.time.products : "";
    state.run.mfu = known ? String(Number((100 * mfu).toPrecision(6))) : "";
    if (ranks > 1n) state.run.devices = String(ranks);
  }

  function sayWhatFollows() {
    at("run-mfu-label").textContent = `MFU under ${state.convention}, %`;
    at("run-note").textContent = state.runFollows
      ? `${state.run.devices && isMany() ? "Peak, MFU, and GPUs" : "Peak and MFU"} are from the prediction above${state.compare ? " for A" : ""}, under ${state.convention}, and follow it. Editing a field ends this link.`
      : "";
  }

  function wholeRun(settings) {
    if (refuse("run", RUN, core.runFaults(state.run))) return "";
    const found = settings.map((each) => core.run(each, each.flops, state.run));
    if (!found[0]) return element("p", { class: "calculator-note" }, "Give the number of tokens; each further number adds a line.");
    const lines = {
      steps: ["steps of b·s tokens", exactly],
      total: ["FLOPs", exactly],
      model: ["model's FLOPs", exactly],
      hours: ["GPU-hours", (hours) => fixed(hours, 1)],
      days: ["days on these GPUs", (days) => fixed(days, 2)],
      energy: ["energy, kWh", (energy) => fixed(energy, 1)],
      energyCost: ["price of the energy", (price) => fixed(price, 2)],
      hireCost: ["price of the GPU-hours", (price) => fixed(price, 2)],
    };
    const rows = Object.entries(lines)
      .filter(([name]) => found[0][name] !== undefined)
      .map(([name, [label, show]]) => [label, ...found.map((each) => show(each[name]))]);
    return tableOf(`The whole run, ${state.convention}`, ["", ...settings.map(({ which }) => (state.compare ? which : "the run"))], rows);
  }

  function save(which, rows) {
    const address = URL.createObjectURL(new Blob([core.csv(rows)], { type: "text/csv" }));
    element("a", { href: address, download: `tally-${which}.csv` }).click();
    URL.revokeObjectURL(address);
  }

  const sentence = ({ which, flops, numbers }) =>
    `${state.compare ? `${which}: ` : ""}${scientific(flops.total)} FLOPs a step of ${grouped(numbers.b)} × ${grouped(numbers.s)} tokens; ` +
    `the backward, with what it recomputes, is ${fixed([flops.backward + flops.recomputation, flops.forward], 4)} × the forward.`;

  function update() {
    const shown = state.compare ? ["A", "B"] : ["A"];
    at("calculator-B").hidden = !state.compare;
    root.classList.toggle("calculator-two", state.compare);
    const settings = [];
    for (const which of ["A", "B"]) {
      const setting = state[which];
      const letters = core.lettersOf(setting);
      for (const letter of NUMBERS) letterRow(which, letter).hidden = !letters.includes(letter);
      for (const flag of Object.keys(FLAGS)) letterRow(which, flag).hidden = !core.optionsOf(setting).includes(flag);
      at(`${which}-preset`).value = presetOf(setting);
      const faults = shown.includes(which) ? core.faults(setting) : [];
      for (const letter of NUMBERS) {
        at(`${which}-${letter}`).setAttribute("aria-invalid", String(faults.some((fault) => fault.startsWith(`${letter}:`))));
      }
      const list = faults.map((fault) => element("p", {}, typeset(fault)));
      at(`${which}-faults`).replaceChildren(...list);
      if (!faults.length && shown.includes(which)) {
        const found = core.tally(setting);
        settings.push({ which, ...found, flops: core.totals(found.rows, state.convention) });
      }
    }
    if (state.runFollows) {
      follow(settings);
      for (const name of ["peak", "mfu", "devices"]) at(`run-${name}`).value = state.run[name];
    }
    sayWhatFollows();
    toAddress();
    at("calculator-results").hidden = settings.length < shown.length;
    if (settings.length < shown.length) {
      at("calculator-says").textContent = "No result: a setting is impossible.";
      at("calculator-plan").replaceChildren(element("p", {}, "No result: a setting is impossible."));
      return;
    }
    at("calculator-says").textContent = settings.map(sentence).join(" ");
    at("calculator-plan").replaceChildren(...plan(settings));
    at("calculator-summary").replaceChildren(summary(settings));
    at("calculator-breakdown").replaceChildren(...breakdown(settings));
    at("calculator-save").replaceChildren(
      ...settings.map(({ which, rows }) =>
        element("button", { type: "button", class: "calculator-button", onclick: () => save(which, rows) }, state.compare ? `Download ${which}'s terms as CSV` : "Download the terms as CSV"),
      ),
    );
    const open = at("calculator-terms").open;
    at("calculator-terms-inside").replaceChildren(...(open ? terms(settings) : []));
    at("calculator-time").replaceChildren(...time(settings));
    at("calculator-memory").replaceChildren(...memory(settings));
    at("calculator-mesh").replaceChildren(...mesh(settings));
    at("calculator-run").replaceChildren(wholeRun(settings));
  }

  // The page

  root.replaceChildren(
    element("section", { id: "calculator-plan", "aria-label": "The plan" }),
    element(
      "form",
      { onsubmit: (event) => event.preventDefault() },
      element("div", { id: "address-faults", role: "alert", class: "calculator-faults" }),
      element("div", { class: "calculator-settings" }, fieldsOf("A"), fieldsOf("B")),
      element(
        "div",
        { class: "calculator-letters" },
        labelled("machine", select("time-machine", ["", ...Object.keys(cost.machines)], ["own rates", ...Object.values(cost.machines).map(([name]) => name.split(",")[0])]), "calculator-field calculator-wide"),
        labelled("memory of a GPU, GiB", text("plan-capacity", { inputmode: "decimal" })),
        labelled("dtype", select("time-dtype", DTYPES)),
        ["tokens", "hourPrice"].map((name) => labelled(RUN[name], text(`run-${name}`, { inputmode: name === "tokens" ? "text" : "decimal" }))),
      ),
      check("compare", "two settings side by side"),
      element(
        "details",
        { id: "calculator-advanced" },
        element("summary", {}, "advanced: how FLOPs are counted"),
        labelled("convention", select("convention", Object.keys(cost.conventions), Object.entries(cost.conventions).map((each) => each.join(": "))), "calculator-field calculator-wide"),
      ),
      element("output", { id: "calculator-says", "aria-live": "polite" }),
    ),
    element(
      "div",
      { id: "calculator-results" },
      element("div", { id: "calculator-summary" }),
      element("div", { id: "calculator-breakdown" }),
      element("details", { id: "calculator-terms", ontoggle: () => update() }, element("summary", {}, "every term, with its formula"), element("div", { id: "calculator-terms-inside" })),
      element("div", { id: "calculator-save", class: "calculator-buttons" }),
      element("h3", {}, "Time of a step"),
      element(
        "form",
        { class: "calculator-letters", onsubmit: (event) => event.preventDefault() },
        Object.entries(RATES).map(([name, label]) => labelled(label, text(`time-${name}`, { inputmode: "decimal" }))),
      ),
      element("div", { id: "time-faults", role: "alert", class: "calculator-faults" }),
      element("div", { id: "calculator-time" }),
      element("details", { id: "calculator-calls", ontoggle: () => update() }, element("summary", {}, "every call, with its work and its time"), element("div", { id: "calculator-calls-inside" })),
      element("h3", {}, "Memory of a step"),
      element("form", { class: "calculator-letters", onsubmit: (event) => event.preventDefault() }, Object.entries(MEMORY).map(([name, [label, types]]) => labelled(label, select(`memory-${name}`, types)))),
      element("div", { id: "calculator-memory" }),
      element("h3", {}, "A step on a mesh of GPUs"),
      element(
        "form",
        { class: "calculator-letters", onsubmit: (event) => event.preventDefault() },
        Object.entries(MESH).map(([name, label]) => labelled(label, text(`mesh-${name}`, { inputmode: "numeric" }))),
        Object.entries(LINKS).map(([name, label]) => labelled(label, text(`links-${name}`, { inputmode: "decimal" }))),
      ),
      element("div", { id: "mesh-faults", role: "alert", class: "calculator-faults" }),
      element("div", { id: "links-faults", role: "alert", class: "calculator-faults" }),
      element("div", { id: "calculator-mesh" }),
      element("h3", {}, "A whole run"),
      element("form", { class: "calculator-letters", onsubmit: (event) => event.preventDefault() }, Object.entries(RUN).filter(([name]) => !["tokens", "hourPrice"].includes(name)).map(([name, label]) => labelled(label, text(`run-${name}`, { inputmode: "decimal" })))),
      element("p", { id: "run-note", role: "status", class: "calculator-note" }),
      element("div", { id: "run-faults", role: "alert", class: "calculator-faults" }),
      element("div", { id: "calculator-run" }),
    ),
  );

  root.addEventListener("input", (event) => {
    const [which, name] = event.target.id.split("-");
    if (name === "config") return;
    const chosen = name === "preset" && cost.presets[event.target.value];
    at("address-faults").replaceChildren();
    if (which === "A" || which === "B") forget(which);
    if (event.target.id === "memory-weights") state.memoryFollows = false;
    if (["run-peak", "run-mfu", ...(isMany() ? ["run-devices"] : [])].includes(event.target.id)) state.runFollows = false;
    const machine = which === "time" && (name === "machine" ? event.target.value : name === "dtype" && machineOf(state.time));
    read();
    if (machine) Object.assign(state.time, core.published(machine, state.time.dtype));
    if (machine && name === "machine") {
      Object.assign(state.links, onMesh.links(machine));
      state.capacity = core.capacity(machine);
    }
    if (chosen) {
      Object.assign(state[which], chosen);
      fit(which);
    }
    if (event.target.id === "compare" && state.compare) state.B = { ...state.A };
    write();
    update();
  });
  window.addEventListener("hashchange", () => {
    fromAddress();
    write();
    update();
  });
  fromAddress();
  write();
  read();
  update();
})();
