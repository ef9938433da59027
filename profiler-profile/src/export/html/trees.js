// Two trees of the same samples. A node is { function, total, own, before, caller, callees }, and has callees once
// `expand` was asked for them: only what is wide enough to be seen is ever made. `before` is the total of the profile
// that this one is compared with, if there is one.

// From the outermost function to those that it calls, by name.
class TopDown {
  constructor(profile, own, total, before) {
    Object.assign(this, { profile, ownOf: own, totalOf: total, beforeOf: before && before.total });
    this.root = this.node(0, null);
  }

  node(at, caller) {
    const { profile } = this;
    return {
      function: profile.functionOf[at],
      total: this.totalOf[at],
      own: this.ownOf[at],
      before: this.beforeOf ? this.beforeOf[at] : 0,
      caller,
      callees: null,
      at,
    };
  }

  expand(node) {
    if (node.callees) return node.callees;
    const { endOf } = this.profile;
    node.callees = [];
    for (let at = node.at + 1; at < endOf[node.at]; at = endOf[at]) {
      if (this.totalOf[at] > 0) node.callees.push(this.node(at, node));
    }
    return node.callees;
  }
}

// From the functions that ran to their callers, most samples first.
class BottomUp {
  constructor(profile, own, total, before) {
    this.profile = profile;
    this.ownOf = own;
    this.beforeOf = before && before.own;
    const ends = [];
    for (let at = 1; at < profile.count; at++) if (own[at] > 0 || (before && before.own[at] > 0)) ends.push(at);
    const at = Int32Array.from(ends);
    this.root = {
      function: profile.functionOf[0],
      total: total[0],
      own: 0,
      before: before ? before.total[0] : 0,
      caller: null,
      callees: null,
      ends: at,
      at,
    };
  }

  // `ends` are the nodes where the samples ended, and `at` is how far up from each the walk is.
  expand(node) {
    if (node.callees) return node.callees;
    const { functionOf, callerOf } = this.profile;
    const isRoot = node.caller === null;
    const groups = new Map();
    node.at.forEach((at, place) => {
      const next = isRoot ? at : callerOf[at];
      if (next === 0) return;
      const group = functionOf[next];
      if (!groups.has(group)) groups.set(group, { ends: [], at: [], total: 0, before: 0 });
      const into = groups.get(group);
      into.ends.push(node.ends[place]);
      into.at.push(next);
      into.total += this.ownOf[node.ends[place]];
      if (this.beforeOf) into.before += this.beforeOf[node.ends[place]];
    });
    let called = 0;
    // What is not there any more has no width.
    const seen = [...groups].filter(([, { total }]) => total > 0);
    node.callees = seen.map(([group, it]) => {
      called += it.total;
      return { function: group, own: 0, caller: node, callees: null, ...it };
    });
    node.own = isRoot ? 0 : node.total - called;
    node.callees.sort((a, b) => b.total - a.total || a.function - b.function);
    return node.callees;
  }
}

// The functions from the root to a node.
function pathTo(node) {
  const path = [];
  for (let it = node; it.caller; it = it.caller) path.push(it.function);
  return path.reverse();
}

// The node at the end of a path, as far as there is one.
function follow(tree, path) {
  let node = tree.root;
  for (const it of path) {
    const next = tree.expand(node).find((callee) => callee.function === it);
    if (!next) break;
    node = next;
  }
  return node;
}
