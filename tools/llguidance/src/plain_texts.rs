//! Masks of rules that take any text, or any text up to some length, as strings of JSON mostly do.
//!
//! From the lexer's present state all texts of a set may be accepted, or all up to a length and none
//! that is longer; then the tokens of the set are allowed by their lengths, and only the others are
//! tried byte by byte. The sets are plain texts, those that a string of JSON holds without escapes;
//! and where these are accepted in part, words of ASCII letters and those with a space before them,
//! most of a vocabulary. The library's own slices do this for texts without a bound and for those
//! that have room for ten characters or more.

use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};

/// The index of the library's slice of plain texts of up to LONGEST characters. The end of texts is
/// looked for up to that length.
const SLICE: usize = 1;
const LONGEST: usize = 10;
/// Fuel for the check of the slice, as the library gives.
const SLICE_FUEL: u64 = 1000;
/// States of the lexer after texts of one length, and within their last character. More would take
/// much of the fuel of a mask.
const MOST_STATES: usize = 16;

/// Characters by the ranges of their bytes.
type Characters = &'static [&'static [(u8, u8)]];

/// Those of plain texts. U+2028 and U+2029 are left out: the `.` of patterns does not match them.
const PLAIN: Characters = &[
    &[(0x20, 0x21)],
    &[(0x23, 0x5b)],
    &[(0x5d, 0x7e)],
    &[(0xc2, 0xdf), (0x80, 0xbf)],
    &[(0xe0, 0xe0), (0xa0, 0xbf), (0x80, 0xbf)],
    &[(0xe1, 0xe1), (0x80, 0xbf), (0x80, 0xbf)],
    &[(0xe2, 0xe2), (0x80, 0x80), (0x80, 0xa7)],
    &[(0xe2, 0xe2), (0x80, 0x80), (0xaa, 0xbf)],
    &[(0xe2, 0xe2), (0x81, 0xbf), (0x80, 0xbf)],
    &[(0xe3, 0xec), (0x80, 0xbf), (0x80, 0xbf)],
    &[(0xed, 0xed), (0x80, 0x9f), (0x80, 0xbf)],
    &[(0xee, 0xef), (0x80, 0xbf), (0x80, 0xbf)],
    &[(0xf0, 0xf0), (0x90, 0xbf), (0x80, 0xbf), (0x80, 0xbf)],
    &[(0xf1, 0xf3), (0x80, 0xbf), (0x80, 0xbf), (0x80, 0xbf)],
    &[(0xf4, 0xf4), (0x80, 0x8f), (0x80, 0xbf), (0x80, 0xbf)],
];

const LETTERS: Characters = &[&[(b'A', b'Z')], &[(b'a', b'z')]];

fn is_plain(character: char) -> bool {
    character >= ' ' && !matches!(character, '"' | '\\' | '\x7f' | '\u{2028}' | '\u{2029}')
}

/// The number of characters of a token that is a plain text.
fn plain_length(token: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(token).ok()?;
    (!text.is_empty() && text.chars().all(is_plain)).then(|| text.chars().count())
}

fn letters(token: &[u8]) -> Option<usize> {
    (!token.is_empty() && token.iter().all(u8::is_ascii_alphabetic)).then_some(token.len())
}

/// The texts of a set that the lexer accepts.
enum Reach {
    /// All up to this length, and none that is longer.
    UpTo(usize),
    /// All up to LONGEST, and perhaps longer ones.
    Far,
    All,
    Unknown,
}

enum Step {
    AllDie,
    AllLive(Vec<StateID>),
    Unknown,
}

fn add_once(states: &mut Vec<StateID>, state: StateID) {
    if !states.contains(&state) {
        states.push(state);
    }
}

/// Lexes each character after each of the states.
fn step(rec: &mut ParserRecognizer<'_>, characters: Characters, states: &[StateID]) -> Step {
    let lexer = rec.lexer_mut();
    let mut next = vec![];
    let mut dies = false;
    let mut ends = vec![];
    let mut begins = vec![];
    for &state in states {
        for ranges in characters {
            ends.clear();
            ends.push(state);
            for &(first, last) in *ranges {
                std::mem::swap(&mut begins, &mut ends);
                ends.clear();
                for &begin in &begins {
                    for byte in first..=last {
                        let end = lexer.transition_start_state(begin, Some(byte), &None);
                        if !end.is_dead() {
                            // The end of a lexeme is the parser's matter.
                            if end.has_lowest_match() {
                                return Step::Unknown;
                            }
                            add_once(&mut ends, end);
                        } else if lexer.try_lexeme_end(begin).is_error() {
                            dies = true;
                        } else {
                            return Step::Unknown;
                        }
                    }
                    if dies && !(ends.is_empty() && next.is_empty()) {
                        return Step::Unknown;
                    }
                    if ends.len() > MOST_STATES {
                        return Step::Unknown;
                    }
                }
            }
            for &end in &ends {
                add_once(&mut next, end);
            }
            if next.len() > MOST_STATES {
                return Step::Unknown;
            }
        }
    }
    if dies {
        Step::AllDie
    } else {
        next.sort_by_key(|state| state.as_usize());
        Step::AllLive(next)
    }
}

fn reach(rec: &mut ParserRecognizer<'_>, characters: Characters, state: StateID) -> Reach {
    let mut states = vec![state];
    for length in 0..=LONGEST {
        match step(rec, characters, &states) {
            Step::AllDie => return Reach::UpTo(length),
            Step::AllLive(next) if next == states => return Reach::All,
            Step::AllLive(next) => states = next,
            Step::Unknown => return Reach::Unknown,
        }
    }
    Reach::Far
}

/// The tokens that are texts of a set, perhaps behind a prefix.
struct Texts {
    characters: Characters,
    /// By length: the texts of at most so many characters.
    up_to: Vec<SimpleVob>,
    all: SimpleVob,
    trie: TokTrie,
    /// Those of more than LONGEST characters.
    long: TokTrie,
}

impl Texts {
    fn new(trie: &TokTrie, characters: Characters, length: impl Fn(&[u8]) -> Option<usize>) -> Self {
        let mut up_to = vec![trie.alloc_token_set(); LONGEST + 1];
        let mut all = trie.alloc_token_set();
        let mut long = trie.alloc_token_set();
        for token in 0..trie.vocab_size() as u32 {
            let Some(length) = length(trie.token(token)) else {
                continue;
            };
            all.allow_token(token);
            if length > LONGEST {
                long.allow_token(token);
            }
            for set in up_to.iter_mut().skip(length) {
                set.allow_token(token);
            }
        }
        Texts {
            characters,
            up_to,
            trie: trie.filter(&all),
            long: trie.filter(&long),
            all,
        }
    }

    /// Allows the texts that are accepted after `state`, to which their prefix leads; false if that
    /// is not known.
    fn allow(&self, rec: &mut ParserRecognizer<'_>, state: StateID, mask: &mut SimpleVob) -> bool {
        match reach(rec, self.characters, state) {
            Reach::UpTo(length) => mask.or(&self.up_to[length]),
            Reach::All => mask.or(&self.all),
            Reach::Far => {
                mask.or(&self.up_to[LONGEST]);
                self.long.add_bias(rec, mask, &[]);
            }
            Reach::Unknown => return false,
        }
        true
    }
}

pub struct PlainTexts {
    env: TokEnv,
    slicer: Arc<SlicedBiasComputer>,
    plain: Texts,
    not_plain: TokTrie,
    words: Texts,
    /// Words with a space before them.
    spaced: Texts,
    no_words: TokTrie,
}

impl PlainTexts {
    pub fn new(env: TokEnv, slicer: Arc<SlicedBiasComputer>) -> Self {
        let trie = env.tok_trie();
        let plain = Texts::new(trie, PLAIN, plain_length);
        let words = Texts::new(trie, LETTERS, letters);
        let spaced = Texts::new(trie, LETTERS, |token| {
            token.strip_prefix(b" ").and_then(letters)
        });
        let all_but = |sets: &[&SimpleVob]| {
            let mut rest = trie.alloc_token_set();
            rest.set_all(true);
            for set in sets {
                rest.sub(set);
            }
            trie.filter(&rest)
        };
        let not_plain = all_but(&[&plain.all]);
        let no_words = all_but(&[&words.all, &spaced.all]);
        PlainTexts {
            env,
            slicer,
            plain,
            not_plain,
            words,
            spaced,
            no_words,
        }
    }

    fn allow_words(&self, rec: &mut ParserRecognizer<'_>, state: StateID, mask: &mut SimpleVob) {
        if !self.words.allow(rec, state, mask) {
            self.words.trie.add_bias(rec, mask, &[]);
        }
        let lexer = rec.lexer_mut();
        let spaced = lexer.transition_start_state(state, Some(b' '), &None);
        if spaced.is_dead() && lexer.try_lexeme_end(state).is_error() {
            return;
        }
        let is_within = !spaced.is_dead() && !spaced.has_lowest_match();
        if !is_within || !self.spaced.allow(rec, spaced, mask) {
            self.spaced.trie.add_bias(rec, mask, &[]);
        }
    }
}

impl BiasComputer for PlainTexts {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = rec.lexer_state();
        let lexer = rec.lexer_mut();
        if !start.is_empty()
            || !lexer.subsume_possible(state)
            || matches!(lexer.check_subsume(state, SLICE, SLICE_FUEL, None), Ok(true))
        {
            return self.slicer.compute_bias(rec, start);
        }
        let mut mask = self.trie().alloc_token_set();
        if self.plain.allow(rec, state, &mut mask) {
            self.not_plain.add_bias(rec, &mut mask, &[]);
        } else {
            self.allow_words(rec, state, &mut mask);
            self.no_words.add_bias(rec, &mut mask, &[]);
        }
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}
