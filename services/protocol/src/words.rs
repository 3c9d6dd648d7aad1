//! Plurals, sentences, durations and sizes for texts that people read, the same in every report, command and page.

/// A shorter wait of a job for workers is not worth a word.
const WAIT_SECONDS_MIN: f64 = 5.0;

/// Returns a count with its noun: `1 mini-batch`, `2 retries`, `0 processes`.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    let is_consonant = |letter: char| letter.is_ascii_alphabetic() && !"aeiou".contains(letter);
    match noun.strip_suffix('y') {
        Some(stem) if stem.ends_with(is_consonant) => format!("{stem}ies"),
        _ if noun.ends_with('s')
            || noun.ends_with("ch")
            || noun.ends_with("sh")
            || noun.ends_with('x') =>
        {
            format!("{noun}es")
        }
        _ => format!("{noun}s"),
    }
}

/// Returns how many items no try computed again: `1 item was kept from earlier tries`.
pub fn kept(items: u64) -> String {
    let were = if items == 1 { "was" } else { "were" };
    format!("{} {were} kept from earlier tries", counted(items, "item"))
}

/// Returns the text as a sentence, with one full stop at its end unless it ends with another such mark.
pub fn sentence(text: &str) -> String {
    let text = text.trim_end();
    let bare = text.trim_end_matches(['.', ' ']);
    if bare.is_empty() || bare.ends_with(['!', '?', '…', ':', ';']) {
        bare.to_owned()
    } else {
        format!("{bare}.")
    }
}

/// Returns the text without a full stop at its end, as part of a longer sentence.
pub fn clause(text: &str) -> &str {
    text.trim_end().trim_end_matches(['.', ' ', ';', ':'])
}

/// Returns seconds in suitable units: `4.2 ms`, `0.44 s`, `16 s`, `3 min 12 s`, `2 h 5 min`, `4 days 3 h`. The page of the
/// portal does the same (`portal/web/src/format.ts`).
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    let two = |large: String, small: u64, unit: &str| {
        if small == 0 { large } else { format!("{large} {small} {unit}") }
    };
    match whole {
        // It would be "0.0 ms".
        _ if seconds < 0.000_05 => "0 s".to_owned(),
        _ if seconds < 0.01 => format!("{:.1} ms", 1000.0 * seconds),
        _ if seconds < 0.1 => format!("{:.0} ms", 1000.0 * seconds),
        0..10 if seconds > whole as f64 => format!("{seconds:.2} s"),
        0..60 => format!("{whole} s"),
        60..3600 => two(format!("{} min", whole / 60), whole % 60, "s"),
        3600..86_400 => two(format!("{} h", whole / 3600), whole / 60 % 60, "min"),
        _ => two(counted(whole / 86_400, "day"), whole / 3600 % 24, "h"),
    }
}

/// Returns how long a job took, and how long it worked if it waited for workers: `20 s`, `1 h 5 min, of which it worked 5 min`.
pub fn took(elapsed_seconds: f64, worked_seconds: f64) -> String {
    let waited = elapsed_seconds - worked_seconds;
    let took = duration(elapsed_seconds);
    // A moment passes before the first sign of a worker.
    if waited < WAIT_SECONDS_MIN || waited < 0.1 * elapsed_seconds {
        return took;
    }
    format!("{took}, of which it worked {}", duration(worked_seconds))
}

/// Returns a number of bytes in a suitable unit, a power of 1024.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Returns a rate: `1250/s`, `0.4/s`, `4.2/min`, `2.0/h`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        100.0.. => format!("{per_second:.0}/s"),
        0.1.. => format!("{per_second:.1}/s"),
        ..=0.0 => "0/s".to_owned(),
        ..0.0016 => format!("{:.1}/h", 3600.0 * per_second),
        _ => format!("{:.1}/min", 60.0 * per_second),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plurals_are_regular_english() {
        let expected = [
            "mini-batches",
            "items",
            "retries",
            "tries",
            "processes",
            "attempts",
            "delays",
            "boxes",
        ];
        let nouns = ["mini-batch", "item", "retry", "try", "process", "attempt", "delay", "box"];
        assert_eq!(nouns.map(plural), expected);
    }

    #[test]
    fn durations_have_one_or_two_units() {
        for (seconds, text) in [
            (-5.0, "0 s"),
            (0.0, "0 s"),
            (0.0042, "4.2 ms"),
            (0.042, "42 ms"),
            (0.44, "0.44 s"),
            (8.0, "8 s"),
            (59.9, "59 s"),
            (192.0, "3 min 12 s"),
            (120.0, "2 min"),
            (7500.0, "2 h 5 min"),
            (86_400.0, "1 day"),
            (356_400.0, "4 days 3 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn slow_rates_are_per_minute_or_hour() {
        assert_eq!(
            [1250.0, 99.0, 0.44, 0.07, 0.0005, 0.0].map(rate),
            ["1250/s", "99.0/s", "0.4/s", "4.2/min", "1.8/h", "0/s"]
        );
    }

    proptest! {
        #[test]
        fn only_one_is_singular(count in prop_oneof![Just(0), Just(1), Just(2), any::<u64>()]) {
            let text = counted(count, "mini-batch");
            prop_assert_eq!(text.ends_with("mini-batch"), count == 1);
            prop_assert!(text.starts_with(&count.to_string()));
        }

        #[test]
        fn sentence_ends_once(text in "[a-z .!?:…]{0,20}") {
            let ended = sentence(&text);
            prop_assert!(!ended.ends_with("..") && !ended.ends_with("?.") && !ended.ends_with("!."), "{}", ended);
            prop_assert!(ended.is_empty() || ended.ends_with(['.', '!', '?', '…', ':']), "{}", ended);
            prop_assert_eq!(sentence(&ended), ended.clone(), "a sentence is unchanged");
            prop_assert!(!clause(&ended).ends_with('.'));
        }
    }
}
