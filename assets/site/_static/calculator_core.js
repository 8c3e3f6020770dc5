// What the calculators compute, without the page: exact, in BigInts, from the formulas of backpassCost.
(function () {
  const cost = globalThis.backpassCost;
  const SIZES = {
    gpt2: ["h", "n_h", "f", "V", "L", "S"],
    llama: ["h", "n_h", "n_kv", "d", "f", "V", "L"],
    encoder: ["h", "n_h", "f", "L"],
    seq2seq: ["t", "h", "n_h", "f", "L_e", "L_d"],
  };
  const WAYS = ["forward", "backward", "recomputation"];
  const MEANINGS = {
    b: "batch, sequences a step",
    s: "tokens a sequence",
    t: "tokens of a source",
    h: "width",
    n_h: "query heads",
    n_kv: "key-value heads",
    d: "width of a head",
    f: "feed-forward width",
    V: "vocabulary",
    L: "layers",
    L_e: "encoder layers",
    L_d: "decoder layers",
    S: "learned positions",
    L_f: "frozen layers",
  };

  function exact(over, under) {
    if (over % under) throw new RangeError(`${over} / ${under} leaves a remainder`);
    return over / under;
  }
  globalThis.exact = exact; // the generated formulas call it

  // Numbers in fields

  // Return a text without the commas or spaces that separate its thousands.
  const together = (text) =>
    String(text ?? "")
      .trim()
      .replace(/^\d{1,3}(?:(?:,\d{3})+|(?:\s\d{3})+)(?!\d)/, (digits) => digits.replace(/[,\s]/g, ""));

  // Return the integer that a text writes, such as 8192 or 8,192; undefined if it is not one.
  function integer(text) {
    const digits = together(text);
    return /^\d+$/.test(digits) ? BigInt(digits) : undefined;
  }

  // Settings

  const hasHead = (setting) => SIZES[setting.family].includes("V");
  const optionsOf = (setting) => [
    ...cost.flags[setting.family],
    "flash",
    ...(hasHead(setting) ? ["chunked", "recompute", "frozen"] : setting.family === "encoder" ? ["recompute"] : []),
  ];
  const lettersOf = (setting) => ["b", "s", ...SIZES[setting.family], ...(setting.frozen && hasHead(setting) ? ["L_f"] : [])];

  // Say what is impossible, and why; nothing if the setting can be computed.
  function faults(setting) {
    const found = [];
    if (!Object.hasOwn(SIZES, setting.family)) return [`family: expected one of ${Object.keys(SIZES).join(", ")}; got ${setting.family}`];
    for (const letter of lettersOf(setting)) {
      const number = integer(setting[letter]);
      const least = letter === "L_f" ? 0n : 1n;
      if (number === undefined || number < least) {
        found.push(`${letter}: expected an integer of at least ${least}; got ${String(setting[letter] ?? "").trim() || "nothing"}`);
      }
    }
    if (found.length) return found;
    const { b, s, h, n_h, n_kv, d, L, S, L_f } = numbers(setting);
    if (setting.family !== "llama") {
      if (h % n_h) found.push(`n_h: expected a divisor of h = ${h}; got ${n_h}`);
      if (S && s > S) found.push(`s: expected at most S = ${S}, the number of learned positions; got ${s}`);
    } else {
      if (n_h % n_kv) found.push(`n_kv: expected a divisor of n_h = ${n_h}; got ${n_kv}`);
      if (d % 2n) found.push(`d: expected an even number, because the rotations turn pairs; got ${d}`);
    }
    if (L_f > L) found.push(`L_f: expected at most L = ${L}; got ${L_f}`);
    return found;
  }

  const numbers = (setting) =>
    Object.fromEntries(lettersOf(setting).map((letter) => [letter, integer(setting[letter])]));

  // Return the number of learned positions if the sequence is longer; undefined if it fits.
  function longest(setting) {
    const [s, S] = [integer(setting.s), integer(setting.S)];
    return SIZES[setting.family].includes("S") && s && S && s > S ? S : undefined;
  }

  // FlashAttention's tiles are square. The causal mask hides the tiles above the diagonal, which are not computed.
  // Attention to a source, or within it, has no mask.
  function tiles({ b, s, t, n_h }) {
    const [largest, least, array] = cost.tiles.map(BigInt);
    let tile = largest;
    while (tile > least && b * n_h * tile * tile > array) tile /= 2n;
    const rows = (s + tile - 1n) / tile;
    const last = s - (rows - 1n) * tile;
    const whole = (rows * (rows - 1n)) / 2n; // tiles in the rows before the last
    const key_tiles = ((t ?? s) + tile - 1n) / tile;
    return { scores: tile * tile * whole + last * s, tiles: tile * whole + last * rows, key_tiles };
  }

  // Tally

  const keyOf = (setting) =>
    [setting.family, ...cost.flags[setting.family].filter((flag) => setting[flag])].join(" ");

  // Return a function that computes a formula, given its number.
  function evaluator(n) {
    const formulas = cost.formulas(...cost.letters.map((letter) => n[letter]));
    return (number) => formulas[number]();
  }

  // Say whether a call, or a term of one, takes no part in a setting.
  const isAbsent = ({ part, stem, way }, { flash, chunked, recompute }) =>
    stem === (flash ? "attention" : "flash_attention") ||
    (part === "output head" && (stem === "linear_cross_entropy") !== Boolean(chunked)) ||
    (way === "recomputation" && !recompute);

  // Return a setting without the options that its family lacks.
  function withOwnOptions(setting) {
    const own = optionsOf(setting);
    const others = ["flash", "chunked", "recompute", "frozen"].filter((option) => !own.includes(option));
    return { ...setting, ...Object.fromEntries(others.map((option) => [option, false])) };
  }

  // Return the rows of a setting, each with its FLOPs under every convention, and the number of parameters.
  function tally(given) {
    const setting = withOwnOptions(given);
    const n = { n_kv: 0n, d: 0n, S: 0n, L_f: 0n, ...numbers(setting) };
    Object.assign(n, tiles(n));
    const at = evaluator(n);
    const variant = `${keyOf(setting)} ${!setting.frozen ? "all" : n.L_f < n.L ? "some" : "last"}`;
    const [all, embeddings, layer, matrices] = cost.parameters[keyOf(setting)].map(at);
    const rows = [];
    for (const number of cost.variants[variant]) {
      const [words, again, times, shape, counts] = cost.rows[number];
      const [part, call, stem, way, what, needs] = words.map((word) => cost.words[word]);
      if (isAbsent({ part, stem, way }, setting)) continue;
      const repeats = at(times);
      if (!repeats || !at(counts[0])) continue;
      const flops = {};
      Object.keys(cost.conventions).forEach((name, i) => (flops[name] = repeats * at(counts[i])));
      rows.push({ part, repeats, call, stem, way, what, needs, again, shape: shape.map(at), flops, counts, times });
    }
    const frozen = setting.frozen ? embeddings + n.L_f * layer : 0n;
    return { setting, variant, numbers: n, rows, parameters: all, matrices, trained: all - frozen };
  }

  // Return the FLOPs of each way, of all of them, and of the model: without what is computed twice.
  function totals(rows, convention) {
    const found = { forward: 0n, backward: 0n, recomputation: 0n, total: 0n, model: 0n };
    for (const row of rows) {
      const flops = row.flops[convention];
      found[row.way] += flops;
      found.total += flops;
      if (!row.again) found.model += flops;
    }
    return found;
  }

  // Return what published formulas say of a step, by their names in cost.published.
  function rules({ setting, numbers: n, parameters, matrices }) {
    if (!hasHead(setting)) return {};
    const tokens = n.b * n.s;
    const heads = n.d ? n.n_h * n.d : n.h;
    return {
      "6n-all": 6n * parameters * tokens,
      "6n": 6n * matrices * tokens,
      palm: (6n * parameters + 12n * n.L * heads * n.s) * tokens,
    };
  }

  function csv(rows) {
    const cell = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
    const facts = ["way", "term", "reads", "m", "k", "n", "products"];
    const lines = [["part", "repeats", "call", "operation", ...facts, ...Object.keys(cost.conventions)]];
    for (const row of rows) {
      const [times = "", m = "", k = "", n = ""] = row.shape;
      lines.push([row.part, row.repeats, row.call, row.stem, row.way, row.what, row.needs, m, k, n, times]);
      lines.at(-1).push(...Object.values(row.flops));
    }
    return lines.map((line) => line.map(cell).join(",") + "\n").join("");
  }

  // Time: a call takes that of its arithmetic or of its bytes, whichever is longer, plus that of any call

  const BOUNDS = ["products", "elements", "memory", "call"];
  const PASSES = [...WAYS, "update"];
  const HALF = ["bfloat16", "float16"];

  // Return the rates of a machine in the units of the fields, as texts.
  function published(machine, dtype) {
    const [, [half, single], elements, bandwidth, call] = cost.machines[machine];
    const products = HALF.includes(dtype) ? half : single;
    const rates = { products: products / 1e12, elements: elements / 1e12, bandwidth: bandwidth / 1e12, call: call * 1e6 };
    return Object.fromEntries(Object.entries(rates).map(([name, rate]) => [name, String(rate)]));
  }

  // Return the memory of a machine in GiB, as a text.
  const capacity = (machine) => String(cost.machines[machine][5] / 2 ** 30);

  // Say what of the rates cannot be read. Only the time of a call may be 0.
  function rateFaults(rates) {
    const found = [];
    for (const name of ["products", "elements", "bandwidth", "call"]) {
      const fault = faultOf(rates[name], { zero: name === "call" });
      if (fault) found.push([name, fault]);
    }
    return found;
  }

  // Return the seconds of a call, and what bounds it. Each count is rounded to a double before the division.
  function timeOf(work, { products, elements, bandwidth, call }) {
    const [multiplying, others] = [Number(work.products) / products, Number(work.elements) / elements];
    const [arithmetic, moving] = [multiplying + others, Number(work.bytes) / bandwidth];
    const longest = Math.max(arithmetic, moving);
    let bound = multiplying >= others ? "products" : "elements";
    if (moving > arithmetic) bound = "memory";
    if (longest < call) bound = "call";
    return { seconds: longest + call, bound };
  }

  // Return the rates of a machine from the texts of the fields, and the column of its dtype.
  function ratesOf({ dtype, ...texts }) {
    const rate = (name, power) => {
      const [a, b] = decimal(texts[name]) ?? [0n, 1n];
      return power < 0 ? Number(a) / Number(b * 10n ** BigInt(-power)) : Number(a * 10n ** BigInt(power)) / Number(b);
    };
    const rates = { products: rate("products", 12), elements: rate("elements", 12), bandwidth: rate("bandwidth", 12), call: rate("call", -6) };
    return { rates, column: HALF.includes(dtype) ? 0 : 1 };
  }

  // Return the work and the time of each call, and the step's: sums in the order of the calls, and the utilisations.
  function time(found, texts) {
    const { rates, column } = ratesOf(texts);
    const at = evaluator(found.numbers);
    const spans = [];
    const add = (about, repeats, work) => {
      const { seconds, bound } = timeOf(work, rates);
      spans.push({ ...about, repeats, ...work, seconds, bound, total: Number(repeats) * seconds });
    };
    for (const number of cost.timed[found.variant]) {
      const [words, times, [products, elements, ...bytes]] = cost.works[number];
      const [part, call, stem, way] = words.map((word) => cost.words[word]);
      const repeats = at(times);
      if (!repeats || isAbsent({ part, stem, way }, found.setting)) continue;
      add({ part, call, stem, way }, repeats, { products: at(products), elements: at(elements), bytes: at(bytes[column]) });
    }
    const [flops, ...widths] = cost.adamw.map(BigInt);
    const update = { products: 0n, elements: flops * found.trained, bytes: widths[column] * found.trained };
    add({ part: "optimiser", call: "AdamW", stem: "adamw", way: "update" }, 1n, update);
    const seconds = spans.reduce((sum, span) => sum + span.total, 0);
    const could = seconds * rates.products; // FLOPs that the machine could compute in products
    return {
      spans,
      seconds,
      tokensPerSecond: Number(found.numbers.b * found.numbers.s) / seconds,
      mfu: (convention) => Number(totals(found.rows, convention).model) / could,
      hfu: (convention) => Number(totals(found.rows, convention).total) / could,
    };
  }

  // Return the seconds of each pass by what bounds its calls.
  function passes({ spans }) {
    const found = {};
    for (const { way, bound, total } of spans) {
      found[way] ??= Object.fromEntries(BOUNDS.map((name) => [name, 0]));
      found[way][bound] += total;
    }
    return found;
  }

  // A Hugging Face config.json

  const NEEDED = {
    gpt2: { vocab_size: "V", n_positions: "S", n_embd: "h", n_layer: "L", n_head: "n_h" },
    llama: {
      vocab_size: "V",
      hidden_size: "h",
      num_hidden_layers: "L",
      num_attention_heads: "n_h",
      intermediate_size: "f",
    },
  };
  const OPTIONAL = { gpt2: ["n_inner"], llama: ["num_key_value_heads", "head_dim"] };
  const TYPES = { gpt2: "gpt2", llama: "llama", qwen2: "llama", qwen3: "llama", mistral: "llama" };

  // Return the config.json of a Mistral as that of a Llama. The defaults are those of Hugging Face, which does not read
  // use_sliding_window.
  function asLlama({ use_sliding_window: _, ...kept }) {
    return { sliding_window: 4096, num_key_value_heads: 8, ...kept, model_type: "llama" };
  }

  // Return the model's part of a setting. What costs nothing, such as a scaling of the rotations, is ignored. Throws an
  // Error that names every fault.
  function readConfig(text) {
    let json;
    try {
      json = JSON.parse(text);
    } catch (error) {
      throw new Error(`this is not JSON: ${error.message}`);
    }
    if (json === null || typeof json !== "object" || Array.isArray(json)) {
      throw new Error("expected the object of a config.json: { … }");
    }
    let type = json.model_type;
    const family = typeof type === "string" && Object.hasOwn(TYPES, type) ? TYPES[type] : undefined;
    if (!family) {
      throw new Error(`model_type: expected ${Object.keys(TYPES).join(", ")}; got ${type ?? "nothing"}`);
    }
    const names = json.architectures ?? [];
    if (!Array.isArray(names)) {
      throw new Error(`architectures: expected a list of names; got ${JSON.stringify(names)}`);
    }
    for (const name of names) {
      if (cost.heads.some((end) => typeof name === "string" && name.endsWith(end))) continue;
      const ends = cost.heads.join(" or ");
      const why = "which have the output head that is counted";
      throw new Error(`architectures: expected names that end in ${ends}, ${why}; got ${JSON.stringify(name)}`);
    }
    if (type === "mistral") {
      json = asLlama(json);
      type = json.model_type;
    }
    const facts = { ...json, rope_type: "default" };
    if (family === "llama") {
      const kinds = json.layer_types ?? [];
      facts.layer_types = Array.isArray(kinds) ? [...new Set(kinds)] : kinds;
      const windows = json.use_sliding_window === undefined ? type === "llama" : json.use_sliding_window;
      if (windows === false) facts.sliding_window = null;
      for (const rotation of [json.rope_scaling, json.rope_parameters]) {
        const fraction = rotation?.partial_rotary_factor;
        if (fraction !== undefined) facts.partial_rotary_factor = fraction;
      }
    }
    const wrong = [];
    for (const key of [...Object.keys(NEEDED[family]), ...OPTIONAL[family]]) {
      const value = json[key] ?? null;
      if (value === null) {
        if (key in NEEDED[family]) wrong.push(`${key}: is missing`);
      } else if (!Number.isSafeInteger(value) || value < 1) {
        wrong.push(`${key}: expected an integer of at least 1; got ${JSON.stringify(value)}`);
      }
    }
    const plain = (value) => JSON.stringify(typeof value === "boolean" ? Number(value) : value);
    for (const [key, values] of Object.entries(cost.accepted[family])) {
      const value = facts[key] === undefined ? values[0] : facts[key];
      if (values.some((known) => plain(known) === plain(value))) continue;
      const can = values.map((known) => JSON.stringify(known)).join(" or ");
      wrong.push(`${key}: ${JSON.stringify(value)} is not available; only ${can}`);
    }
    const tied = json.tie_word_embeddings === undefined ? family === "gpt2" : json.tie_word_embeddings;
    if (typeof tied !== "boolean") {
      wrong.push(`tie_word_embeddings: expected true or false; got ${JSON.stringify(tied)}`);
    }
    if (wrong.length) throw new Error(wrong.join("\n"));
    const setting = { family, tied };
    for (const [key, letter] of Object.entries(NEEDED[family])) setting[letter] = json[key];
    if (family === "gpt2") {
      setting.f = json.n_inner ?? 4 * json.n_embd;
    } else {
      const [width, heads] = [json.hidden_size, json.num_attention_heads];
      setting.n_kv = json.num_key_value_heads ?? heads;
      setting.d = json.head_dim ?? (type === "qwen3" ? 128 : width / heads);
      if (!Number.isInteger(setting.d)) {
        const where = `a multiple of num_attention_heads = ${heads} where head_dim is missing`;
        throw new Error(`hidden_size: expected ${where}; got ${width}`);
      }
      setting.biases = type === "qwen2";
      setting.query_key_norm = type === "qwen3";
    }
    for (const letter of SIZES[family]) setting[letter] = String(setting[letter]);
    const impossible = faults({ ...setting, b: "1", s: "1" });
    if (impossible.length) throw new Error(impossible.join("\n"));
    return setting;
  }

  // Fractions of BigInts, [over, under]

  const SUFFIXES = { k: 3, K: 3, M: 6, B: 9, G: 9, T: 12 };

  // Return the fraction that a decimal number writes, such as 0.38, 1,979 or 1.8e13, and with suffixes 15T; undefined if
  // it is not one above 0.
  function decimal(text, { suffixes = false } = {}) {
    const parts = /^(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,2})|\s?([kKMBGT]))?$/.exec(together(text));
    if (!parts || (parts[4] && !suffixes)) return undefined;
    const [, whole, places = "", power = "0", suffix] = parts;
    const tens = (suffix ? SUFFIXES[suffix] : Number(power)) - places.length;
    const digits = BigInt(whole + places);
    if (!digits) return undefined;
    return tens < 0 ? [digits, 10n ** BigInt(-tens)] : [digits * 10n ** BigInt(tens), 1n];
  }
  const times = (...fractions) => fractions.reduce(([a, b], [c, d]) => [a * c, b * d], [1n, 1n]);
  const over = (first, second) => times(first, [second[1], second[0]]);
  const rounded = ([a, b]) => (2n * a + b) / (2n * b); // halves go up

  // Numbers as text

  const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  const fixed = (fraction, places) => {
    const digits = String(rounded(times(fraction, [10n ** BigInt(places), 1n]))).padStart(places + 1, "0");
    const whole = grouped(digits.slice(0, digits.length - places));
    return places ? `${whole}.${digits.slice(-places)}` : whole;
  };
  const raised = (number) => String(number).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

  // Return an integer with four digits, as 1.234 × 10⁹; a shorter one as it is.
  function scientific(number) {
    const text = String(number);
    if (text.length <= 6) return grouped(text);
    let power = text.length - 1;
    let digits = String(rounded([number, 10n ** BigInt(power - 3)]));
    if (digits.length > 4) [digits, power] = [digits.slice(0, 4), power + 1];
    return `${digits[0]}.${digits.slice(1)} × 10${raised(power)}`;
  }

  // Return a double with four digits, as 0.01234 or 1.234 × 10⁹.
  function significant(number) {
    const [digits, power] = number.toExponential(3).split("e").map(Number);
    if (!number) return "0";
    if (power < -3 || power > 5) return `${digits.toFixed(3)} × 10${raised(power)}`;
    return power < 3 ? number.toFixed(3 - power) : grouped(Number(number.toPrecision(4)));
  }

  // Say what is wrong with a number in a field; nothing if it can be read.
  function faultOf(given, { zero = false, most, suffixes = false } = {}) {
    const isZero = /^\s*0+(\.0*)?\s*$/.test(given);
    const [a, b] = decimal(given, { suffixes }) ?? [0n, 1n];
    if ((isZero && zero) || (a && (most === undefined || a <= most * b))) return undefined;
    const range = `${zero ? "of at least" : "above"} 0${most === undefined ? "" : ` and at most ${most}`}`;
    return `expected a number ${range}, such as ${suffixes ? "300B or 1.5e13" : "40 or 1.5e3"}; got ${given?.trim() || "nothing"}`;
  }

  // A whole run

  // Say what of a run cannot be read; what is not given is left out.
  function runFaults(run) {
    const found = [];
    for (const [name, given] of Object.entries(run)) {
      const fault = given?.trim() && faultOf(given, { most: name === "mfu" ? 100n : undefined, suffixes: name === "tokens" });
      if (fault) found.push([name, fault]);
    }
    return found;
  }

  // Return steps, FLOPs, and what follows from the rates that are given. MFU is the rate of the model's FLOPs over the
  // peak, so what is computed twice takes no part in the time.
  function run(found, flops, { tokens, peak, mfu, devices, power, energyPrice, hourPrice }) {
    const asked = decimal(tokens, { suffixes: true });
    if (!asked) return undefined;
    const perStep = found.numbers.b * found.numbers.s;
    const steps = (rounded([asked[0], asked[1]]) + perStep - 1n) / perStep;
    const result = { steps, total: steps * flops.total, model: steps * flops.model };
    const rate = decimal(peak);
    const part = decimal(mfu);
    if (!rate || !part) return result;
    const perSecond = times(rate, [10n ** 12n, 1n], part, [1n, 100n]);
    result.hours = over([result.model, 3600n], perSecond);
    const many = decimal(devices);
    if (many) result.days = over(result.hours, times(many, [24n, 1n]));
    const watts = decimal(power);
    if (watts) result.energy = times(result.hours, watts, [1n, 1000n]);
    const perUnit = decimal(energyPrice);
    if (watts && perUnit) result.energyCost = times(result.energy, perUnit);
    const perHour = decimal(hourPrice);
    if (perHour) result.hireCost = times(result.hours, perHour);
    return result;
  }

  // Memory: parameters, gradients, the optimiser's states, and the arrays that the backward needs

  const BYTES = { none: 0n, float32: 4n, bfloat16: 2n, float16: 2n };

  // Return the bytes that each part saves for the backward. Frozen layers save nothing, and the first part that is trained
  // saves less. The arrays have the parameters' dtype, except those that the network keeps in float32.
  function saved({ setting, numbers: n }, weights) {
    const at = evaluator(n);
    const column = weights === "float32" ? 1 : 0;
    const rows = cost.saved[`${keyOf(setting)}${setting.flash ? " flash" : ""}`];
    const of = Object.fromEntries(rows.map(([part, ...formulas]) => [part, at(formulas[column])]));
    if (setting.family === "seq2seq") {
      return {
        "saved by the encoder's layers": n.L_e * of["encoder layer"],
        "saved by the decoder's layers": n.L_d * of["decoder layer"],
        "saved once for the layers of the decoder": of.memory,
        "saved by the last norms": of["last norm"],
      };
    }
    const trained = n.L - (setting.frozen ? n.L_f : 0n);
    const first = setting.frozen ? of["first trained layer"] : of.layer;
    const layers = trained ? (trained - 1n) * of.layer + first : 0n;
    const again = trained > 1n ? of.layer : trained * first;
    const norm = of[trained ? "last norm" : "first trained norm"];
    const head = setting.chunked ? "chunked head" : "output head";
    return {
      "tables of the rotations": of.tables ?? 0n,
      "saved by the embedding": of.embedding ?? 0n,
      "saved by the layers": setting.recompute ? 0n : layers,
      "checkpoints: the layers' inputs": setting.recompute ? trained * of.input : 0n,
      "saved by one layer, recomputed": setting.recompute ? again : 0n,
      "saved by the last norm": norm ?? 0n,
      "saved by the output head": of[setting.frozen && setting.tied ? `frozen ${head}` : head] ?? 0n,
    };
  }

  const memory = (found, { weights, gradients, master, moments }) => ({
    parameters: found.parameters * BYTES[weights],
    gradients: found.trained * BYTES[gradients],
    "copy of the trained parameters": found.trained * BYTES[master],
    "AdamW's two moments": 2n * found.trained * BYTES[moments],
    ...saved(found, weights),
  });

  // Settings in the address

  const toHash = (state) => `#${new URLSearchParams(state)}`;
  const fromHash = (hash) => (hash.includes("=") ? Object.fromEntries(new URLSearchParams(hash.slice(1))) : {});

  globalThis.backpassCalculator = {
    BOUNDS, BYTES, MEANINGS, PASSES, SIZES, WAYS, csv, decimal, evaluator, faultOf, faults, fixed, fromHash, grouped, integer,
    capacity, isAbsent, keyOf, lettersOf, longest, memory, optionsOf, over, passes, published, rateFaults, ratesOf, readConfig, rules, run, runFaults, scientific, significant, tally, tiles, time,
    timeOf, times, toHash, totals,
  }; // prettier-ignore
})();
