//! Plurals and sentences for texts that people read.

/// Returns a count with its noun: `1 mini-batch`, `2 retries`, `0 processes`.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    let is_consonant = |letter: char| letter.is_ascii_alphabetic() && !"aeiou".contains(letter);
    match noun.strip_suffix('y') {
        Some(stem) if stem.ends_with(is_consonant) => format!("{stem}ies"),
        _ if noun.ends_with('s') || noun.ends_with("ch") || noun.ends_with("sh") || noun.ends_with('x') => {
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
    if bare.is_empty() || bare.ends_with(['!', '?', '…', ':', ';']) { bare.to_owned() } else { format!("{bare}.") }
}

/// Returns the text without a full stop at its end, as part of a longer sentence.
pub fn clause(text: &str) -> &str {
    text.trim_end().trim_end_matches(['.', ' ', ';', ':'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plurals_are_regular_english() {
        let expected = ["mini-batches", "items", "retries", "tries", "processes", "attempts", "delays", "boxes"];
        let nouns = ["mini-batch", "item", "retry", "try", "process", "attempt", "delay", "box"];
        assert_eq!(nouns.map(plural), expected);
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
