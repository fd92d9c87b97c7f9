//! Bars and charts out of block characters, or of `#` where there are none.

use std::time::Duration;

use super::scene::Sample;

const EIGHTHS_ACROSS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
const EIGHTHS_UP: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The chart shows means over that.
const SMOOTHED: Duration = Duration::from_secs(1);

/// A horizontal bar of exactly `columns` columns, of which `value / max` are full. Something is never shown as nothing.
pub(super) fn bar(value: i64, max: i64, columns: usize, unicode: bool) -> String {
    let steps = if unicode { columns * 8 } else { columns };
    let filled = scaled(value, max, steps);
    let mut bar = String::new();
    for column in 0..columns {
        bar.push(if unicode {
            EIGHTHS_ACROSS[filled.saturating_sub(column * 8).min(8)]
        } else if column < filled {
            '#'
        } else {
            ' '
        });
    }
    bar
}

/// `value / max` of `steps`, rounded, but at least one step for what is not nothing.
fn scaled(value: i64, max: i64, steps: usize) -> usize {
    if value <= 0 || max <= 0 {
        return 0;
    }
    let share = value as f64 / max as f64 * steps as f64;
    (share.round() as usize).clamp(1, steps)
}

/// A chart of `rows` lines of `columns` characters each, from the top, over the time from 0 to `span`.
pub(super) fn chart(
    history: &[Sample],
    span: Duration,
    max: i64,
    columns: usize,
    rows: usize,
    unicode: bool,
) -> Vec<Vec<char>> {
    let heights: Vec<usize> =
        by_column(history, span, columns).into_iter().map(|lag| scaled(lag, max, rows * 8)).collect();
    let cell = |height: usize, row: usize| {
        let eighths = height.saturating_sub((rows - 1 - row) * 8).min(8);
        match (unicode, eighths) {
            (true, _) => EIGHTHS_UP[eighths],
            (false, 0) => ' ',
            (false, 1..=4) => '.',
            (false, _) => '#',
        }
    };
    (0..rows).map(|row| heights.iter().map(|height| cell(*height, row)).collect()).collect()
}

/// The lag in each column's time, as the mean over [`SMOOTHED`], which hides the steps of single commits. Between two
/// samples the one before holds; 0 after the last sample.
fn by_column(history: &[Sample], span: Duration, columns: usize) -> Vec<i64> {
    let mut lags = vec![0; columns];
    let (Some(first), Some(last)) = (history.first(), history.last()) else { return lags };
    let range = column_at(first.at, span, columns)..=column_at(last.at, span, columns);
    let (mut from, mut to) = (0, 0);
    for (column, lag) in lags.iter_mut().enumerate() {
        if !range.contains(&column) {
            continue;
        }
        while history.get(to).is_some_and(|sample| column_at(sample.at, span, columns) <= column) {
            to += 1;
        }
        let newest = history[to - 1].at;
        while history[from].at + SMOOTHED <= newest {
            from += 1;
        }
        let count = i64::try_from(to - from).unwrap_or(i64::MAX);
        *lag = history[from..to].iter().map(|sample| sample.lag).sum::<i64>() / count;
    }
    lags
}

/// The column that a time falls to.
pub(super) fn column_at(at: Duration, span: Duration, columns: usize) -> usize {
    let share = at.as_secs_f64() / span.as_secs_f64().max(f64::EPSILON);
    ((share * columns as f64) as usize).min(columns.saturating_sub(1))
}

/// The smallest round number that is not below: of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten.
pub(super) fn round_up(value: i64) -> i64 {
    let mut power = 1;
    loop {
        for tenths in [10, 15, 20, 30, 40, 50, 60, 80] {
            let round = tenths * power;
            if round / 10 >= value && round % 10 == 0 {
                return round / 10;
            }
        }
        if power > i64::MAX / 1000 {
            return value;
        }
        power *= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_a_scale_and_show_the_smallest_value() {
        assert_eq!(bar(50, 100, 4, true), "██  ");
        assert_eq!(bar(57, 100, 4, true), "██▎ ");
        assert_eq!(bar(1, 100_000, 4, true), "▏   ");
        assert_eq!(bar(0, 100, 4, true), "    ");
        assert_eq!(bar(200, 100, 4, true), "████");
        assert_eq!(bar(50, 100, 4, false), "##  ");
        assert_eq!(bar(1, 100_000, 4, false), "#   ");
        assert_eq!(bar(5, 0, 2, false), "  ");
    }

    #[test]
    fn a_chart_goes_as_far_as_time_has_gone() {
        let sample = |at, lag| Sample { at: Duration::from_secs(at), lag };
        let history = [sample(0, 0), sample(2, 50), sample(4, 100), sample(6, 20)];
        let text = |unicode| {
            chart(&history, Duration::from_secs(10), 100, 10, 2, unicode)
                .into_iter()
                .map(|row| row.into_iter().collect::<String>())
                .collect::<Vec<_>>()
        };
        assert_eq!(text(true), ["    ██    ", "  ████▃   "]);
        assert_eq!(text(false), ["    ##    ", "  ####.   "]);
        assert_eq!(chart(&[], Duration::from_secs(1), 1, 3, 1, true), [[' ', ' ', ' ']]);
    }

    #[test]
    fn round_numbers() {
        for (value, round) in [(0, 1), (1, 1), (2, 2), (7, 8), (9, 10), (11, 15), (3600, 4000), (801, 1000)] {
            assert_eq!(round_up(value), round, "{value}");
        }
        assert_eq!(round_up(i64::MAX), i64::MAX);
    }
}
