//! The flame graph, as icicles: callers above, and widths in half cells.

use profiler_profile::live::{Flame, FunctionName, Node};
use ratatui_core::{
    layout::Rect,
    style::{Color, Modifier, Style},
};

use super::{
    app::App,
    canvas::Canvas,
    colours,
    model::{Body, Model},
    numbers::{count, share},
};

/// One line of so many is for what leads to the call that fills the graph.
const ABOVE: u16 = 3;

/// A call as it is drawn: its node, and where it begins and ends, in half cells.
struct Block {
    place: usize,
    begin: u32,
    end: u32,
    is_odd: bool,
}

/// Draws it, and below what is chosen.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &mut App, model: &Model) {
    let Body::Flame(flame) = &model.body else { return };
    let (root, chosen) = (flame.follow(&app.zoom), flame.follow(&app.call));
    // What is gone since is no longer zoomed to.
    app.zoom = flame.path(root);
    let (lines, about) = (area.height.saturating_sub(1), area.bottom().saturating_sub(1));
    let halves = u32::from(area.width) * 2;
    let mut calls = Vec::new();
    let mut row = vec![Block { place: root, begin: 0, end: halves, is_odd: false }];
    let mut line = 0;
    // What leads to it stands above, as wide as the screen.
    for above in folded(&above(flame, root), usize::from(lines / ABOVE)) {
        let at = Rect { y: area.y + line, height: 1, ..area };
        match above {
            Above::Call(place) => {
                let block = Block { place, begin: 0, end: halves, is_odd: line % 2 == 1 };
                draw_row(canvas, at, flame, app, &[block], chosen, &mut calls);
            }
            Above::Folded(count) => fold(canvas, at, count),
        }
        line += 1;
    }
    // What is chosen is seen, however deep it lies.
    let depth = (above(flame, chosen).len() + 1).saturating_sub(above(flame, root).len());
    let hidden = (depth + 1).saturating_sub(usize::from(lines.saturating_sub(line)));
    if depth > usize::from(lines.saturating_sub(line)) {
        for _ in 0..hidden {
            row = row.iter().flat_map(|it| children(flame, it)).collect();
        }
        fold(canvas, Rect { y: area.y + line, height: 1, ..area }, hidden);
        line += 1;
    }
    while line < lines && !row.is_empty() {
        let at = Rect { y: area.y + line, height: 1, ..area };
        draw_row(canvas, at, flame, app, &row, chosen, &mut calls);
        row = row.iter().flat_map(|it| children(flame, it)).collect();
        line += 1;
    }
    app.hits.calls = calls;
    app.hits.rows = Rect { height: 0, ..area };
    let Some(node) = flame.get(chosen) else { return };
    let all = flame.get(0).map_or(0, |it| it.total);
    let text = format!(
        "{}  {} of all  {} samples, {} in itself  {}",
        node.name.name,
        share(node.total, all),
        count(node.total),
        count(node.own),
        node.name.module
    );
    let mut text = if all == 0 { "nothing of that was sampled".to_owned() } else { text };
    if let Some(search) = &app.search {
        let found = flame.matching(|it| search.is_match(&it.name.name));
        text = format!("found {}   {text}", share(found, all));
    }
    canvas.put(area.x, about, area.width, &text, colours::strong());
}

/// A line above what fills the graph.
#[derive(Clone, Debug, PartialEq)]
enum Above {
    Call(usize),
    /// So many calls that are not shown.
    Folded(usize),
}

/// What stands in so many lines: the root and the nearest callers, if there is no room for all.
fn folded(above: &[usize], lines: usize) -> Vec<Above> {
    let lines = lines.max(3);
    let call = |it: &usize| Above::Call(*it);
    if above.len() <= lines {
        return above.iter().map(call).collect();
    }
    let count = above.len() + 1 - lines;
    let (root, near) = (above.iter().take(1), above.iter().skip(1 + count));
    root.map(call).chain([Above::Folded(count)]).chain(near.map(call)).collect()
}

/// Draws a line in the place of some.
fn fold(canvas: &mut Canvas<'_>, at: Rect, count: usize) {
    canvas.put(at.x, at.y, at.width, &format!(" ⋮ {count} calls"), canvas.looks.faint());
}

/// What leads to a node, the root first.
fn above(flame: &Flame, place: usize) -> Vec<usize> {
    let mut above = Vec::new();
    let mut at = place;
    while at > 0 {
        let Some(node) = flame.get(at) else { break };
        at = node.parent;
        above.push(at);
    }
    above.reverse();
    above
}

/// The calls of one, within its width. Those narrower than half a cell are left out.
fn children(flame: &Flame, of: &Block) -> Vec<Block> {
    let Some(node) = flame.get(of.place) else { return Vec::new() };
    let width = u128::from(of.end - of.begin);
    let at = |samples: u64| {
        let part = u128::from(samples) * width / u128::from(node.total.max(1));
        of.begin + u32::try_from(part).unwrap_or(0)
    };
    let mut before = 0_u64;
    let mut blocks = Vec::new();
    for call in flame.calls(of.place) {
        let total = flame.get(call).map_or(0, |it| it.total);
        let (begin, end) = (at(before), at(before.saturating_add(total)));
        before = before.saturating_add(total);
        if end > begin {
            let is_odd = of.is_odd ^ (blocks.len() % 2 == 0);
            blocks.push(Block { place: call, begin, end, is_odd });
        }
    }
    blocks
}

/// How a call looks.
fn look(app: &App, node: &Node, is_odd: bool) -> Color {
    let is_found = app.search.as_ref().is_some_and(|it| it.is_match(&node.name.name));
    if is_found { colours::found() } else { colours::flame(node.kind, is_odd) }
}

fn draw_row(
    canvas: &mut Canvas<'_>,
    at: Rect,
    flame: &Flame,
    app: &App,
    row: &[Block],
    chosen: usize,
    calls: &mut Vec<(Rect, Vec<FunctionName>)>,
) {
    let with_colours = canvas.looks.colours;
    let mut halves: Vec<Option<Color>> = vec![None; usize::from(at.width) * 2];
    for block in row {
        let Some(node) = flame.get(block.place) else { continue };
        let colour = look(app, node, block.is_odd);
        let (begin, end) = (block.begin as usize, block.end as usize);
        halves.iter_mut().take(end).skip(begin).for_each(|it| *it = Some(colour));
    }
    if with_colours {
        for (x, pair) in (at.x..).zip(halves.chunks(2)) {
            let (left, right) = (pair.first().copied().flatten(), pair.last().copied().flatten());
            let (text, style) = match (left, right) {
                (None, None) => continue,
                (Some(left), Some(right)) if left == right => (" ", Style::new().bg(left)),
                (Some(left), Some(right)) => ("▌", Style::new().fg(left).bg(right)),
                (Some(left), None) => ("▌", Style::new().fg(left)),
                (None, Some(right)) => ("▐", Style::new().fg(right)),
            };
            canvas.put(x, at.y, 1, text, style);
        }
    }
    for block in row {
        let Some(node) = flame.get(block.place) else { continue };
        // Whole cells.
        let (begin, end) = (block.begin.div_ceil(2), block.end / 2);
        let cells = u16::try_from(end.saturating_sub(begin)).unwrap_or(0);
        let begin = at.x + u16::try_from(begin).unwrap_or(0);
        let is_chosen = block.place == chosen && chosen > 0;
        let is_found = app.search.as_ref().is_some_and(|it| it.is_match(&node.name.name));
        let mut style = if with_colours {
            Style::new().fg(Color::Black).bg(look(app, node, block.is_odd))
        } else {
            colours::reversed()
        };
        if is_chosen || is_found {
            style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        }
        let area = Rect { x: begin, y: at.y, width: cells, height: 1 };
        if !with_colours {
            // Nothing else tells where one ends.
            canvas.put(begin, at.y, 1.min(cells), "▏", style);
            canvas.style(area, style);
        } else if is_chosen {
            canvas.style(area, style);
        }
        let name =
            if is_chosen { format!("▸{}", node.name.name) } else { node.name.name.clone() };
        let room = cells.saturating_sub(1);
        if room > 1 {
            canvas.put(begin + u16::from(!with_colours), at.y, room, &name, style);
        }
        if cells > 0 {
            calls.push((area, flame.path(block.place)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_the_nearest_callers_stay_where_there_is_no_room() {
        let all: Vec<usize> = (0..10).collect();
        let calls = |of: &[usize]| of.iter().map(|it| Above::Call(*it)).collect::<Vec<_>>();
        assert_eq!(folded(&all, 10), calls(&all));
        assert_eq!(folded(&[], 5), []);
        let [shown, expected] =
            [folded(&all, 5), [calls(&[0]), vec![Above::Folded(6)], calls(&[7, 8, 9])].concat()];
        assert_eq!(shown, expected);
        assert_eq!(folded(&all, 0).len(), 3);
    }
}
