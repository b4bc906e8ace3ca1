//! Masks of rules that take any text, or any text up to some length, as strings of JSON mostly do.
//!
//! Plain texts are those that a string of JSON holds without escapes. From the lexer's present state
//! all plain texts of a length may be accepted, and all longer ones refused; then the tokens that
//! are plain texts are allowed by their lengths, and only the few thousand others are tried byte by
//! byte. The library's own slices do this for texts without a bound and for those that have room for
//! ten characters or more.

use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};

/// The index of the library's slice of plain texts of up to LONGEST characters; the last character
/// of a text is looked for up to that length.
const SLICE: usize = 1;
const LONGEST: usize = 10;
/// Fuel for the check of the slice, as the library gives.
const SLICE_FUEL: u64 = 1000;
/// States of the lexer after texts of one length.
const MOST_STATES: usize = 16;

/// The characters of plain texts, by the ranges of their bytes. U+2028 and U+2029 are left out: the
/// `.` of patterns does not match them.
const CHARACTERS: &[&[(u8, u8)]] = &[
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

fn is_plain(character: char) -> bool {
    character >= ' ' && !matches!(character, '"' | '\\' | '\x7f' | '\u{2028}' | '\u{2029}')
}

/// The number of characters of a token that is a plain text.
fn plain_length(token: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(token).ok()?;
    (!text.is_empty() && text.chars().all(is_plain)).then(|| text.chars().count())
}

/// The plain texts that the lexer accepts.
enum Reach {
    /// All up to this length, and none that is longer.
    UpTo(usize),
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
fn step(rec: &mut ParserRecognizer<'_>, states: &[StateID]) -> Step {
    let lexer = rec.lexer_mut();
    let mut next = vec![];
    let mut dies = false;
    let mut ends = vec![];
    let mut begins = vec![];
    for &state in states {
        for ranges in CHARACTERS {
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

fn reach(rec: &mut ParserRecognizer<'_>) -> Reach {
    let mut states = vec![rec.lexer_state()];
    for length in 0..=LONGEST {
        match step(rec, &states) {
            Step::AllDie => return Reach::UpTo(length),
            Step::AllLive(next) if next == states => return Reach::All,
            Step::AllLive(next) => states = next,
            Step::Unknown => return Reach::Unknown,
        }
    }
    Reach::Unknown
}

pub struct PlainTexts {
    env: TokEnv,
    slicer: Arc<SlicedBiasComputer>,
    /// By length: the tokens that are plain texts of at most so many characters.
    up_to: Vec<SimpleVob>,
    all: SimpleVob,
    others: TokTrie,
}

impl PlainTexts {
    pub fn new(env: TokEnv, slicer: Arc<SlicedBiasComputer>) -> Self {
        let trie = env.tok_trie();
        let mut all = trie.alloc_token_set();
        let mut others = trie.alloc_token_set();
        let mut up_to = vec![trie.alloc_token_set(); LONGEST + 1];
        for token in 0..trie.vocab_size() as u32 {
            match plain_length(trie.token(token)) {
                Some(length) => {
                    all.allow_token(token);
                    for set in up_to.iter_mut().skip(length) {
                        set.allow_token(token);
                    }
                }
                None => others.allow_token(token),
            }
        }
        let others = trie.filter(&others);
        PlainTexts {
            env,
            slicer,
            up_to,
            all,
            others,
        }
    }

    fn with_others(&self, rec: &mut ParserRecognizer<'_>, plain: &SimpleVob) -> SimpleVob {
        let mut mask = self.trie().alloc_token_set();
        self.others.add_bias(rec, &mut mask, &[]);
        mask.or(plain);
        mask
    }
}

impl BiasComputer for PlainTexts {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = rec.lexer_state();
        let lexer = rec.lexer_mut();
        if start.is_empty()
            && lexer.subsume_possible(state)
            && !matches!(lexer.check_subsume(state, SLICE, SLICE_FUEL, None), Ok(true))
        {
            match reach(rec) {
                Reach::UpTo(length) => return self.with_others(rec, &self.up_to[length]),
                Reach::All => return self.with_others(rec, &self.all),
                Reach::Unknown => {}
            }
        }
        self.slicer.compute_bias(rec, start)
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}
