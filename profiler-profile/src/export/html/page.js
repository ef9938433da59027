// The page: what is chosen, and what is shown of it.

class Page {
  constructor(profile) {
    this.profile = profile;
    this.filter = { source: profile.sources.length > 1 ? 0 : null, process: null, thread: null, module: null };
    this.isBottomUp = false;
    this.pattern = null;
    this.selected = null;
    this.back = [];
    this.sought = null;
    const { canvas, scroller, spacer, rows, sheet } = this.parts;
    const heads = { own: this.parts["by-own"], total: this.parts["by-total"], name: this.parts["by-name"] };
    this.graph = new FlameGraph(profile, { canvas, scroller, spacer });
    this.table = new FunctionTable(profile, { rows, sheet, heads }, (row) => this.choose(row));
    this.describe();
    this.listen();
    this.choices();
    this.refresh();
  }

  // The elements with an id.
  get parts() {
    if (!this.found) {
      this.found = {};
      for (const it of document.querySelectorAll("[id]")) this.found[it.id] = it;
    }
    return this.found;
  }

  // What was sampled, and what became of the samples.
  describe() {
    const { file, sources } = this.profile;
    const { title, about, ledger, producer } = this.parts;
    document.body.classList.toggle("compares", Boolean(file.change));
    title.textContent = sources.map((it) => it.title).join(" · ");
    document.title = `${title.textContent} – profile`;
    const { source, count } = this.profile.samples;
    const taken = new Map();
    const unit = (it) => (file.change && it === 1 ? "before" : sources[it].unit);
    source.forEach((it, at) => taken.set(unit(it), (taken.get(unit(it)) || 0) + count[at]));
    if (taken.size === 0) taken.set("samples", 0);
    const facts = [...taken].map(([unit, sum]) => `${grouped(sum)} ${unit}`);
    if (file.change && file.change.scale !== 1) facts.push("shares are compared");
    if (file.duration_ns !== null) facts.push(`${(file.duration_ns / 1e9).toFixed(2)} s`);
    if (file.cpus !== null) facts.push(file.cpus === 1 ? "1 CPU" : `${file.cpus} CPUs`);
    if (file.begun) facts.push(file.begun);
    about.textContent = facts.join(" · ");
    producer.textContent = file.producer;
    this.parts["ledger-table"].textContent = file.ledger;
    // A file that was read has no account of its samples, but perhaps some words.
    if (sources.some((it) => it.delivered === null)) {
      ledger.textContent = file.ledger.split("\n", 1)[0];
      return;
    }
    const sum = (of) => sources.reduce((sum, it) => sum + of(it), 0);
    const counts = (reasons) => reasons.reduce((sum, [, count]) => sum + count, 0);
    const reasons = (of) => {
      const all = new Map();
      for (const [why, count] of sources.flatMap(of)) all.set(why, (all.get(why) || 0) + count);
      return all.size > 0 ? ` (${[...all].map(([why, count]) => `${why} ${grouped(count)}`).join(", ")})` : "";
    };
    const lost = sum((it) => counts(it.lost));
    ledger.replaceChildren(
      element("b", "", grouped(sum((it) => it.delivered))), " delivered",
      element("i", "", "·"),
      element("b", "", grouped(sum((it) => counts(it.filtered)))), ` filtered${reasons((it) => it.filtered)}`,
      element("i", "", "·"),
      element("b", lost > 0 ? "lost" : "", grouped(lost)),
      element("span", lost > 0 ? "lost" : "", ` lost${reasons((it) => it.lost)}`),
    );
  }

  // What is let through. A comparison has its samples as those of two sources: first those after, then those before.
  get shown() {
    return this.profile.file.change ? { ...this.filter, source: 0 } : this.filter;
  }

  // Fills the lists of what can be filtered by, with the samples of each under the other filters.
  choices() {
    const { profile, shown: filter } = this;
    const { event, process, thread, module } = this.parts;
    // What somebody chooses from does not change under their hands.
    const fill = (select, ...of) => {
      if (!this.isTaking || select !== document.activeElement) fillList(select, ...of);
    };
    this.parts["by-event"].hidden = profile.sources.length < 2 || Boolean(profile.file.change);
    fill(event, profile.sources.map((it, at) => [at, it.title]), filter.source);
    const ofSource = { ...filter, process: null, thread: null };
    const byProcess = profile.countBy(ofSource, "process");
    const byThread = profile.countBy({ ...ofSource, process: filter.process }, "thread");
    const total = [...byProcess.values()].reduce((sum, it) => sum + it, 0);
    const listed = (sums, chosen, name) => {
      const rows = [...sums].filter(([it, count]) => count > 0 || it === chosen);
      rows.sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1));
      const choices = rows.map(([it, count]) => [it, `${name(it)}   ${share(count, total)}`]);
      // What is chosen stays to be seen, also where it has no samples.
      if (chosen !== null && !sums.has(chosen)) choices.unshift([chosen, `${name(chosen)}   0.0%`]);
      return [[null, "All"], ...choices];
    };
    const processName = (it) => {
      const { name, pid } = profile.processes[it];
      return pid === null ? name : `${name} (${pid})`;
    };
    const threadName = (it) => {
      const { name, tid } = profile.threads[it];
      return tid === null ? name : `${name} (${tid})`;
    };
    fill(process, listed(byProcess, filter.process, processName), filter.process);
    this.parts.command.textContent = filter.process === null ? "" : profile.processes[filter.process].command;
    fill(thread, listed(byThread, filter.thread, threadName), filter.thread);
    fill(module, listed(profile.countByModule(filter), filter.module, baseName), filter.module);
    const isFiltered = [filter.process, filter.thread, filter.module].some((it) => it !== null);
    this.parts.clear.hidden = !isFiltered;
  }

  // Shows what the filter lets through. Where the same frames still are, the zoom stays.
  refresh() {
    const path = this.graph.zoomed ? pathTo(this.graph.zoomed) : [];
    this.count();
    this.back = [];
    this.showTree(path);
    this.find();
  }

  // Sums what the filter lets through.
  count() {
    const own = this.profile.own(this.shown);
    const total = this.profile.total(own);
    this.own = own;
    this.total = total[0];
    this.sums = this.profile.sums(own, total);
    const before = this.before();
    this.sumsBefore = before && this.profile.sums(before.own, before.total);
    this.trees = [TopDown, BottomUp].map((Tree) => {
      let tree = null;
      return () => (tree ||= new Tree(this.profile, own, total, before));
    });
  }

  // The tree in the order that is shown.
  get tree() {
    return this.trees[this.isBottomUp ? 1 : 0]();
  }

  // What the filter lets through of the profile that this one is compared with, if there is one.
  before() {
    if (!this.profile.file.change) return null;
    const own = this.profile.own({ ...this.filter, source: 1 });
    return { own, total: this.profile.total(own) };
  }

  showTree(path) {
    this.sought = null;
    this.graph.show(this.tree, follow(this.tree, path));
    this.describeZoom();
  }

  // Takes later samples, and goes on showing what is chosen.
  take(profile) {
    const choice = new Choice(this);
    this.isTaking = true;
    this.profile = profile;
    this.graph.take(profile);
    this.table.profile = profile;
    this.describe();
    choice.apply(this);
    this.isTaking = false;
    if (this.pointed) this.point(this.pointed);
  }

  // Zooms to a node, and remembers where that was from.
  zoom(node) {
    this.sought = null;
    if (node === this.graph.zoomed) return;
    this.back.push(this.graph.zoomed);
    this.graph.zoom(node);
    this.describeZoom();
  }

  goBack() {
    const { zoomed, tree } = this.graph;
    if (zoomed !== tree.root) {
      this.sought = null;
      this.graph.zoom(this.back.pop() || tree.root);
      this.describeZoom();
    } else if (this.selected !== null) {
      this.table.select(this.selected);
    } else if (this.parts.search.value) {
      this.parts.search.value = "";
      this.find();
    }
  }

  describeZoom() {
    const { zoomed, tree } = this.graph;
    // What was under the mouse is elsewhere now.
    this.parts.tip.hidden = true;
    const isAll = zoomed === tree.root;
    this.parts.zoomed.textContent = isAll ? `All · ${grouped(this.total)} ${this.unit()}` : this.sentence(zoomed);
    this.parts.reset.hidden = isAll;
  }

  // What is counted.
  unit() {
    return this.profile.sources[this.shown.source || 0].unit;
  }

  sentence(node) {
    const name = this.profile.names[node.function];
    const change = this.profile.change(node.before, node.total);
    const grown = change ? ` · ${change.isNoise ? "noise" : growth(change)}` : "";
    return `${name} · ${grouped(node.total)} ${this.unit()} · ${share(node.total, this.total)}${grown}`;
  }

  // Marks what the search field says, and shows the share of it.
  find() {
    const { search, matched } = this.parts;
    search.removeAttribute("aria-invalid");
    this.pattern = null;
    let isMatch = null;
    if (search.value) {
      try {
        // Who types a capital letter means it.
        this.pattern = new RegExp(search.value, hasCapital(search.value) ? "" : "i");
      } catch (error) {
        search.setAttribute("aria-invalid", "true");
        matched.textContent = error.message.replace(/^Invalid regular expression: /, "");
        this.mark(null);
        return;
      }
      const { names } = this.profile;
      const found = Uint8Array.from(names, (name) => (this.pattern.test(name) ? 1 : 0));
      isMatch = (it) => found[it] === 1;
    }
    matched.textContent = isMatch ? this.matchedShare(isMatch) : "";
    this.mark(isMatch);
  }

  matchedShare(isMatch) {
    const count = this.profile.countWith(this.own, isMatch);
    return `Matched: ${share(count, this.total)} · ${grouped(count)} ${this.unit()}`;
  }

  // Marks the function that is selected, or else what was searched. The table shows what was searched.
  mark(isMatch) {
    const { rowOf } = this.profile;
    let isShown = null;
    if (isMatch) {
      const rows = new Set();
      rowOf.forEach((row, it) => isMatch(it) && rows.add(row));
      isShown = (it) => rows.has(it.row);
    }
    this.isMatch = isMatch;
    this.table.show(this.sums, this.sumsBefore, this.total, isShown, this.isTaking);
    this.markSelected();
  }

  markSelected() {
    const { rowOf } = this.profile;
    this.graph.isMarked = this.selected === null ? this.isMatch : (it) => rowOf[it] === this.selected;
    this.graph.draw();
  }

  choose(row) {
    this.selected = row;
    this.markSelected();
  }

  order(isBottomUp) {
    if (isBottomUp === this.isBottomUp) return;
    this.isBottomUp = isBottomUp;
    this.back = [];
    this.pressOrder();
    this.showTree([]);
  }

  pressOrder() {
    const { isBottomUp } = this;
    const { growsUp } = this.graph;
    press(this.parts["bottom-up"], isBottomUp);
    press(this.parts["top-down"], !isBottomUp);
    press(this.parts.flame, growsUp);
    press(this.parts.icicle, !growsUp);
  }

  direct(growsUp) {
    this.graph.growsUp = growsUp;
    this.pressOrder();
    this.graph.zoom(this.graph.zoomed);
    this.describeZoom();
  }

  set(part, value) {
    this.filter[part] = value;
    if (part === "process") this.filter.thread = null;
    this.choices();
    this.refresh();
  }

  clear() {
    Object.assign(this.filter, { process: null, thread: null, module: null });
    this.choices();
    this.refresh();
  }

  help() {
    const { help } = this.parts;
    help.showModal();
    // Its button is in focus, which may be below the window.
    help.scrollTop = 0;
  }

  toggleTable() {
    const isHidden = document.body.classList.toggle("no-table");
    press(this.parts["table-button"], !isHidden);
  }

  // What the mouse is over.
  point(event) {
    const { canvas, tip } = this.parts;
    this.pointed = { clientX: event.clientX, clientY: event.clientY };
    const at = canvas.getBoundingClientRect();
    const box = this.graph.at(event.clientX - at.left, event.clientY - at.top);
    if (box !== this.graph.hovered) {
      this.graph.hovered = box;
      this.graph.draw();
      tip.hidden = !box;
      if (box) tip.replaceChildren(...this.explain(box));
    }
    canvas.style.cursor = box && box.node ? "pointer" : "default";
    if (box) place(tip, event.clientX, event.clientY);
  }

  leave() {
    this.pointed = null;
    this.parts.tip.hidden = true;
    this.graph.hovered = null;
    this.graph.draw();
  }

  explain(box) {
    const { profile, graph } = this;
    const facts = element("dl");
    const fact = (name, samples, of) => {
      facts.append(element("dt", "", name), element("dd", "", `${share(samples, of)}`), element("dd", "", grouped(samples)));
    };
    if (!box.node) {
      fact("Samples", box.samples, this.total);
      return [element("b", "", `${grouped(box.frames)} narrow frames`), element("p", "", "Zoom in to see them."), facts];
    }
    const { node } = box;
    const kind = ["", "Process", "User", "User, inlined", "Kernel", "Kernel, inlined", "Interpreted"][profile.kinds[node.function]];
    const module = profile.modules[node.function];
    fact(this.isBottomUp ? "Samples" : "Total", node.total, this.total);
    if (graph.zoomed !== graph.tree.root && node !== graph.zoomed && !box.isCaller) fact("Of the zoom", node.total, graph.zoomed.total);
    if (!this.isBottomUp) fact("Self", node.own, this.total);
    const change = profile.change(node.before, node.total);
    if (change) {
      const note = (name, text, number) =>
        facts.append(element("dt", "", name), element("dd", "", text), element("dd", "", number));
      note("Before", "", grouped(Math.round(change.before)));
      note("Change", growth(change), change.isNoise ? "noise" : grouped(Math.round(node.total - change.before)));
    }
    const where = [kind, module].filter(Boolean).join(" · ");
    return [element("b", "", profile.names[node.function]), element("p", "", where), facts];
  }

  listen() {
    const { parts, graph } = this;
    const { canvas, scroller, search } = parts;
    canvas.addEventListener("mousemove", (event) => this.point(event));
    canvas.addEventListener("mouseleave", () => this.leave());
    canvas.addEventListener("click", (event) => {
      const at = canvas.getBoundingClientRect();
      const box = graph.at(event.clientX - at.left, event.clientY - at.top);
      if (box && box.node) this.zoom(box.node);
    });
    scroller.addEventListener("scroll", () => graph.draw());
    new ResizeObserver(() => graph.resize()).observe(scroller);
    new ResizeObserver(() => this.table.draw()).observe(parts.rows);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      graph.readTheme();
      graph.draw();
    });
    search.addEventListener("input", () => this.find());
    const number = (select) => (select.value === "" ? null : Number(select.value));
    parts.event.addEventListener("change", () => this.set("source", number(parts.event)));
    parts.process.addEventListener("change", () => this.set("process", number(parts.process)));
    parts.thread.addEventListener("change", () => this.set("thread", number(parts.thread)));
    parts.module.addEventListener("change", () => this.set("module", parts.module.value || null));
    const click = (id, action) => parts[id].addEventListener("click", action);
    click("clear", () => this.clear());
    click("reset", () => this.zoom(graph.tree.root));
    click("top-down", () => this.order(false));
    click("bottom-up", () => this.order(true));
    click("flame", () => this.direct(true));
    click("icicle", () => this.direct(false));
    click("table-button", () => this.toggleTable());
    click("help-button", () => this.help());
    click("ledger-button", () => parts["ledger-dialog"].showModal());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { parts, graph } = this;
    const isFind = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f";
    if (document.querySelector("dialog[open]")) return;
    if (isFind) {
      event.preventDefault();
      parts.search.focus();
      parts.search.select();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === parts.search) {
      if (event.key === "Escape") {
        event.preventDefault();
        parts.search.value = "";
        this.find();
      }
      if (event.key === "Escape" || event.key === "Enter") parts.scroller.focus();
      return;
    }
    if (event.target.tagName === "SELECT") {
      if (event.key === "Escape") parts.scroller.focus();
      return;
    }
    const atGraph = event.target === parts.scroller || event.target === document.body;
    const step = atGraph && this.arrow(event.key);
    const actions = {
      "/": () => parts.search.focus(),
      "?": () => this.help(),
      0: () => this.zoom(graph.tree.root),
      Home: () => this.zoom(graph.tree.root),
      Escape: () => this.goBack(),
      Backspace: () => this.goBack(),
      b: () => this.order(!this.isBottomUp),
      i: () => this.direct(!graph.growsUp),
      c: () => this.clear(),
      e: () => parts.event.focus(),
      p: () => parts.process.focus(),
      h: () => parts.thread.focus(),
      m: () => parts.module.focus(),
      t: () => this.toggleTable(),
      l: () => parts["ledger-dialog"].showModal(),
    };
    if (step) {
      event.preventDefault();
      const box = graph.step(step);
      if (box) parts.cursor.textContent = this.sentence(box.node);
    } else if (atGraph && event.key === "Enter" && graph.cursor) {
      this.zoom(graph.cursor.node);
    } else if (Object.hasOwn(actions, event.key)) {
      event.preventDefault();
      actions[event.key]();
    }
  }

  // Where an arrow leads: calls go up or down.
  arrow(key) {
    const { growsUp } = this.graph;
    const steps = { ArrowLeft: "before", ArrowRight: "after", ArrowUp: growsUp ? "callee" : "caller", ArrowDown: growsUp ? "caller" : "callee" };
    return steps[key];
  }
}

// Whether a regular expression has a capital letter that stands for itself, which that in `\S` does not.
function hasCapital(pattern) {
  return /\p{Lu}/u.test(pattern.replace(/\\./gs, ""));
}
