"use strict";
// The samples, read and summed. Nothing here knows of the page.

const KIND = { ALL: 0, PROCESS: 1, USER: 2, INLINED: 3, KERNEL: 4, KERNEL_INLINED: 5, INTERPRETED: 6 };

class Profile {
  // Takes what the file has, parsed.
  constructor(file) {
    this.file = file;
    this.sources = file.sources;
    const text = (row) => file.strings[row];
    this.names = file.functions.name.map(text);
    this.modules = file.functions.module.map(text);
    this.kinds = Uint8Array.from(file.functions.kind);
    this.functionOf = Int32Array.from(file.nodes.function);
    this.depthOf = Int32Array.from(file.nodes.depth);
    this.count = this.functionOf.length;
    this.findCallers();
    this.samples = {
      source: Int32Array.from(file.samples.source),
      thread: Int32Array.from(file.samples.thread),
      node: Int32Array.from(file.samples.node),
      count: Float64Array.from(file.samples.count),
    };
    this.processes = file.processes.name.map((name, row) => {
      const command = file.processes.command[row];
      return { name: text(name), pid: file.processes.pid[row], command: command === null ? "" : text(command) };
    });
    this.threads = file.threads.name.map((name, row) => {
      return { name: text(name), tid: file.threads.tid[row], process: file.threads.process[row] };
    });
    this.findRows();
  }

  // The caller of each node, and where those that it calls end.
  findCallers() {
    const { depthOf, count } = this;
    this.callerOf = new Int32Array(count);
    this.endOf = new Int32Array(count).fill(count);
    const path = [];
    for (let node = 0; node < count; node++) {
      const depth = depthOf[node];
      for (let ended = depth; ended < path.length; ended++) this.endOf[path[ended]] = node;
      path.length = depth;
      this.callerOf[node] = depth > 0 ? path[depth - 1] : 0;
      path.push(node);
    }
  }

  // The table has one row for a function, whether it was inlined or not.
  findRows() {
    const rows = new Map();
    this.rows = [];
    this.rowOf = new Int32Array(this.names.length);
    this.names.forEach((name, it) => {
      const kind = this.kinds[it];
      const space = kind === KIND.INLINED ? KIND.USER : kind === KIND.KERNEL_INLINED ? KIND.KERNEL : kind;
      const key = `${space}\n${name}\n${this.modules[it]}`;
      if (!rows.has(key)) {
        rows.set(key, this.rows.length);
        this.rows.push({ row: this.rows.length, name, module: this.modules[it], kind: space });
      }
      this.rowOf[it] = rows.get(key);
    });
  }

  // What a function is told by from others, in other samples, too.
  key(it) {
    return `${this.kinds[it]}\n${this.names[it]}\n${this.modules[it]}`;
  }

  // The function of a key; undefined if no sample has it.
  find(key) {
    this.keys ||= new Map(this.names.map((_, it) => [this.key(it), it]));
    return this.keys.get(key);
  }

  // The rows of a process, a thread and a function, which need not have samples here.
  rowOfProcess({ pid, name, command }) {
    const at = this.processes.findIndex((it) => it.pid === pid && (pid !== null || it.name === name));
    return at >= 0 ? at : this.processes.push({ pid, name, command }) - 1;
  }

  rowOfThread({ tid, name }, process) {
    const of = this.rowOfProcess(process);
    const at = this.threads.findIndex((it) => it.process === of && it.tid === tid && it.name === name);
    return at >= 0 ? at : this.threads.push({ tid, name, process: of }) - 1;
  }

  rowOfFunction({ name, module, kind }) {
    const at = this.rows.findIndex((it) => it.name === name && it.module === module && it.kind === kind);
    return at >= 0 ? at : this.rows.push({ row: this.rows.length, name, module, kind }) - 1;
  }

  // What has changed, if this is a comparison: by how much of what was before, and of the larger of both.
  change(samples, after) {
    const { change } = this.file;
    if (!change) return null;
    const before = samples * change.scale;
    const delta = after - before;
    const deviation = Math.hypot(change.scale * Math.sqrt(samples), Math.sqrt(after));
    return {
      before,
      growth: delta === 0 ? 0 : delta / before,
      relative: delta / Math.max(before, after, Number.MIN_VALUE),
      isNoise: Math.abs(delta) <= change.deviations * deviation,
    };
  }

  // The samples that a filter lets through, by the node where they ended. Each of its parts is a number, or
  // null for all; the module is a name.
  own({ source, process, thread, module }) {
    const own = new Float64Array(this.count);
    const has = module === null ? null : this.nodesUnder((it) => this.modules[it] === module);
    const { samples, threads } = this;
    for (let at = 0; at < samples.node.length; at++) {
      if (source !== null && samples.source[at] !== source) continue;
      if (thread !== null && samples.thread[at] !== thread) continue;
      if (process !== null && threads[samples.thread[at]].process !== process) continue;
      if (has && !has[samples.node[at]]) continue;
      own[samples.node[at]] += samples.count[at];
    }
    return own;
  }

  // Samples by something that they have, under the other parts of a filter.
  countBy(filter, key) {
    const sums = new Map();
    const { samples, threads } = this;
    const has = filter.module === null ? null : this.nodesUnder((it) => this.modules[it] === filter.module);
    for (let at = 0; at < samples.node.length; at++) {
      const thread = samples.thread[at];
      const process = threads[thread].process;
      if (filter.source !== null && samples.source[at] !== filter.source) continue;
      if (filter.thread !== null && thread !== filter.thread) continue;
      if (filter.process !== null && process !== filter.process) continue;
      if (has && !has[samples.node[at]]) continue;
      const of = key === "thread" ? thread : process;
      sums.set(of, (sums.get(of) || 0) + samples.count[at]);
    }
    return sums;
  }

  // Samples that came through each module.
  countByModule(filter) {
    const total = this.total(this.own({ ...filter, module: null }));
    const ids = new Map();
    const idOf = Int32Array.from(this.modules, (name) => {
      if (!ids.has(name)) ids.set(name, ids.size);
      return ids.get(name);
    });
    const sums = this.sumOutermost(total, (node) => idOf[this.functionOf[node]], ids.size);
    return new Map([...ids].map(([name, it]) => [name, sums[it]]).filter(([name]) => name));
  }

  // For each node, whether it or one of its callers is such a function.
  nodesUnder(isSuch) {
    const such = Uint8Array.from(this.names, (_, it) => (isSuch(it) ? 1 : 0));
    const under = new Uint8Array(this.count);
    for (let node = 0; node < this.count; node++) {
      under[node] = such[this.functionOf[node]] | (node > 0 ? under[this.callerOf[node]] : 0);
    }
    return under;
  }

  // What came through each node, of what ended at each.
  total(own) {
    const total = Float64Array.from(own);
    for (let node = this.count - 1; node > 0; node--) total[this.callerOf[node]] += total[node];
    return total;
  }

  // The table: each function's samples, in a column by row. One that calls itself counts once.
  sums(own, total) {
    const row = (node) => this.rowOf[this.functionOf[node]];
    const ended = new Float64Array(this.rows.length);
    for (let node = 0; node < this.count; node++) ended[row(node)] += own[node];
    return { own: ended, total: this.sumOutermost(total, row, this.rows.length) };
  }

  // The totals of all nodes of a group that have no caller of the same group.
  sumOutermost(total, groupOf, groups) {
    const sums = new Float64Array(groups);
    const open = new Int32Array(groups);
    const path = [];
    for (let node = 0; node < this.count; node++) {
      while (path.length > this.depthOf[node]) open[path.pop()] -= 1;
      const group = groupOf(node);
      if (open[group] === 0) sums[group] += total[node];
      open[group] += 1;
      path.push(group);
    }
    return sums;
  }

  // The samples that have such a function on their stack.
  countWith(own, isSuch) {
    const under = this.nodesUnder(isSuch);
    let sum = 0;
    for (let node = 0; node < this.count; node++) if (under[node]) sum += own[node];
    return sum;
  }
}
