//! The constraints' library llguidance, with C functions beside its own: matchers whose calls
//! cannot abort the program and whose masks of strings are fast, and an allocator that counts and
//! bounds what a call allocates.
//!
//! A call stands between `orcd_llg_begin` and `orcd_llg_end` on one thread. Its first allocation
//! past one of its bounds returns null, the hook for failed allocations panics, and the panic
//! becomes an error of the matcher, as the library's own panics do. runtime/constraint/llg_library.h
//! declares the functions for C++.

// Without the hook a failed allocation aborts the program. tools/fetch-llguidance allows the feature
// to this crate alone.
#![feature(alloc_error_hook)]

use std::alloc::{set_alloc_error_hook, GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_char, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Once};

use llguidance::api::TopLevelGrammar;
use llguidance::{panic_utils, Matcher};
use plain_texts::PlainTexts;

pub use llguidance::ffi::*;

mod plain_texts;

const GOES_ON: i32 = 0;
const STOPPED_BY_BYTES: i32 = 1;
const STOPPED_BY_ALL_BYTES: i32 = 2;
const STOPPED_BY_TIME: i32 = 3;

/// The bytes that the library holds, but for what open calls have not added yet: at most
/// MOST_UNADDED for each thread.
static HELD: AtomicI64 = AtomicI64::new(0);
const MOST_UNADDED: i64 = 64 << 10;

/// Allocations between two looks at the clock, which is a system call.
const ALLOCATIONS_A_LOOK: u32 = 256;

/// A thread's call.
struct Call {
    is_open: Cell<bool>,
    /// Allocated less freed since the call began; the part that HELD lacks.
    bytes: Cell<i64>,
    unadded: Cell<i64>,
    most_bytes: Cell<i64>,
    most_held: Cell<i64>,
    /// The thread's processor time at which the call is stopped.
    ends: Cell<i64>,
    allocations: Cell<u32>,
    stop: Cell<i32>,
    /// True once the hook has panicked. What follows must not fail: it unwinds.
    unwinds: Cell<bool>,
}

impl Call {
    const fn new() -> Self {
        Call {
            is_open: Cell::new(false),
            bytes: Cell::new(0),
            unadded: Cell::new(0),
            most_bytes: Cell::new(0),
            most_held: Cell::new(0),
            ends: Cell::new(i64::MAX),
            allocations: Cell::new(0),
            stop: Cell::new(GOES_ON),
            unwinds: Cell::new(false),
        }
    }

    /// Counts an allocation; false if it must fail.
    fn take(&self, size: usize) -> bool {
        let size = size as i64;
        if self.is_open.get() && !self.unwinds.get() {
            if self.stop.get() == GOES_ON {
                self.stop.set(self.stop_for(size));
            }
            if self.stop.get() != GOES_ON {
                return false;
            }
        }
        self.add(size);
        true
    }

    fn stop_for(&self, size: i64) -> i32 {
        let held = HELD.load(Ordering::Relaxed) + self.unadded.get();
        if self.bytes.get().saturating_add(size) > self.most_bytes.get() {
            STOPPED_BY_BYTES
        } else if held.saturating_add(size) > self.most_held.get() {
            STOPPED_BY_ALL_BYTES
        } else if self.is_late() {
            STOPPED_BY_TIME
        } else {
            GOES_ON
        }
    }

    fn is_late(&self) -> bool {
        if self.ends.get() == i64::MAX {
            return false;
        }
        let count = self.allocations.get().wrapping_add(1);
        self.allocations.set(count);
        count % ALLOCATIONS_A_LOOK == 0 && thread_nanoseconds() > self.ends.get()
    }

    /// Adds bytes, or subtracts those that are freed.
    fn add(&self, size: i64) {
        if !self.is_open.get() {
            HELD.fetch_add(size, Ordering::Relaxed);
            return;
        }
        self.bytes.set(self.bytes.get() + size);
        let unadded = self.unadded.get() + size;
        if unadded.abs() < MOST_UNADDED {
            self.unadded.set(unadded);
        } else {
            self.unadded.set(0);
            HELD.fetch_add(unadded, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static CALL: Call = const { Call::new() };
}

fn take(size: usize) -> bool {
    CALL.with(|call| call.take(size))
}

fn add(size: i64) {
    CALL.with(|call| call.add(size));
}

#[repr(C)]
struct TimeSpec {
    seconds: i64,
    nanoseconds: i64,
}

extern "C" {
    fn clock_gettime(clock: i32, time: *mut TimeSpec) -> i32;
}

const CLOCK_THREAD_CPUTIME_ID: i32 = 3;

fn thread_nanoseconds() -> i64 {
    let mut time = TimeSpec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: the function only writes the time.
    unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.seconds * 1_000_000_000 + time.nanoseconds
}

/// The system's allocator, counted.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn counted(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        add(-(size as i64));
    }
    pointer
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        counted(System.alloc(layout), layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        counted(System.alloc_zeroed(layout), layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        System.dealloc(pointer, layout);
        add(-(layout.size() as i64));
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let more = new_size.saturating_sub(layout.size());
        if more > 0 && !take(more) {
            return std::ptr::null_mut();
        }
        let moved = counted(System.realloc(pointer, layout, new_size), more);
        if !moved.is_null() {
            add(-(layout.size().saturating_sub(new_size) as i64));
        }
        moved
    }
}

/// The hook for failed allocations.
fn stop_call(layout: Layout) {
    let unwinds = CALL.with(|call| {
        let may_unwind = call.is_open.get() && !call.unwinds.get();
        if may_unwind {
            if call.stop.get() == GOES_ON {
                // The system itself has no memory left.
                call.stop.set(STOPPED_BY_ALL_BYTES);
            }
            call.unwinds.set(true);
        }
        may_unwind
    });
    if unwinds {
        panic!("the call was stopped");
    }
    eprintln!("memory allocation of {} bytes failed", layout.size());
}

static PREPARED: Once = Once::new();

fn prepare() {
    // The first of these calls sets a hook that takes a backtrace of every panic, whose text reads
    // the whole program's symbols. The hook below replaces it.
    let _ = panic_utils::catch_unwind(|| Ok(()));
    std::panic::set_hook(Box::new(|info| {
        if !CALL.with(|call| call.is_open.get()) {
            eprintln!("{info}");
        }
    }));
    set_alloc_error_hook(stop_call);
}

/// Begins a call of this thread, which has none: at most so many bytes more than it frees, at most
/// so many bytes that the library holds in all, at most so much processor time. i64::MAX: no bound.
#[no_mangle]
pub extern "C" fn orcd_llg_begin(most_bytes: i64, most_held: i64, most_nanoseconds: i64) {
    PREPARED.call_once(prepare);
    CALL.with(|call| {
        call.bytes.set(0);
        call.unadded.set(0);
        call.most_bytes.set(most_bytes);
        call.most_held.set(most_held);
        call.ends.set(if most_nanoseconds == i64::MAX {
            i64::MAX
        } else {
            thread_nanoseconds().saturating_add(most_nanoseconds)
        });
        call.allocations.set(0);
        call.stop.set(GOES_ON);
        call.unwinds.set(false);
        call.is_open.set(true);
    });
}

#[repr(C)]
pub struct OrcdUse {
    /// Allocated less freed.
    bytes: i64,
    /// The bound that stopped the call; 0: none.
    stop: i32,
}

/// Ends the thread's call.
#[no_mangle]
pub extern "C" fn orcd_llg_end() -> OrcdUse {
    CALL.with(|call| {
        call.is_open.set(false);
        HELD.fetch_add(call.unadded.replace(0), Ordering::Relaxed);
        OrcdUse {
            bytes: call.bytes.get(),
            stop: call.stop.get(),
        }
    })
}

/// The bytes that the library holds.
#[no_mangle]
pub extern "C" fn orcd_llg_held() -> i64 {
    HELD.load(Ordering::Relaxed)
}

/// A tokenizer's sets of tokens, which make masks fast. Immutable; any thread may use them.
pub struct OrcdTokens {
    plain_texts: Arc<PlainTexts>,
}

/// The tokenizer has the slices of runtime/constraint/llg_vocabulary.cc.
#[no_mangle]
pub extern "C" fn orcd_tokens_new(tokenizer: &LlgTokenizer) -> *mut OrcdTokens {
    let env = tokenizer.tok_env().clone();
    let slicer = tokenizer.factory().slicer();
    Box::into_raw(Box::new(OrcdTokens {
        plain_texts: Arc::new(PlainTexts::new(env, slicer)),
    }))
}

/// # Safety
/// The pointer is one of orcd_tokens_new, or null.
#[no_mangle]
pub unsafe extern "C" fn orcd_tokens_free(tokens: *mut OrcdTokens) {
    if !tokens.is_null() {
        drop(Box::from_raw(tokens));
    }
}

/// A matcher of the library. One thread at a time, but for clones, which several may make.
pub struct OrcdMatcher {
    matcher: Matcher,
    error: Option<CString>,
}

/// `otherwise` after a panic, which must not leave a C function.
fn guarded<R>(otherwise: R, call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// Reads a rule, of the kinds of llg_new_matcher. In error if it is refused; null only if the call
/// was stopped.
///
/// # Safety
/// The pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn orcd_matcher_new(
    init: &LlgConstraintInit,
    tokens: &OrcdTokens,
    kind: *const u8,
    kind_size: usize,
    text: *const u8,
    text_size: usize,
) -> *mut OrcdMatcher {
    let kind = std::slice::from_raw_parts(kind, kind_size);
    let text = std::slice::from_raw_parts(text, text_size);
    guarded(std::ptr::null_mut(), || {
        let parser = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let kind = std::str::from_utf8(kind)?;
            let text = std::str::from_utf8(text)?;
            let parser = init.build_parser(TopLevelGrammar::from_tagged_str(kind, text)?);
            parser.map(|mut parser| {
                parser.bias_computer = tokens.plain_texts.clone();
                parser
            })
        }));
        Box::into_raw(Box::new(OrcdMatcher {
            matcher: Matcher::new(parser),
            error: None,
        }))
    })
}

/// A matcher in the same state with a lexer of its own; null if the call was stopped, after which
/// the original cannot be cloned any more.
#[no_mangle]
pub extern "C" fn orcd_matcher_clone(matcher: &OrcdMatcher) -> *mut OrcdMatcher {
    guarded(std::ptr::null_mut(), || {
        Box::into_raw(Box::new(OrcdMatcher {
            matcher: matcher.matcher.deep_clone(),
            error: None,
        }))
    })
}

/// # Safety
/// The pointer is a matcher of these functions, or null.
#[no_mangle]
pub unsafe extern "C" fn orcd_matcher_free(matcher: *mut OrcdMatcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

/// The error that the matcher is in, until it is freed; null if there is none.
#[no_mangle]
pub extern "C" fn orcd_matcher_error(matcher: &mut OrcdMatcher) -> *const c_char {
    guarded(std::ptr::null(), || {
        if matcher.error.is_none() {
            let error = matcher.matcher.get_error();
            matcher.error = error.and_then(|text| CString::new(text.replace('\0', " ")).ok());
        }
        matcher
            .error
            .as_ref()
            .map_or(std::ptr::null(), |error| error.as_ptr())
    })
}

/// The tokens that may come next, in words of 32; false if the matcher fails.
///
/// # Safety
/// There is room for `count` words.
#[no_mangle]
pub unsafe extern "C" fn orcd_matcher_mask(
    matcher: &mut OrcdMatcher,
    words: *mut u32,
    count: usize,
) -> bool {
    let words = std::slice::from_raw_parts_mut(words, count);
    guarded(false, || match matcher.matcher.compute_mask_or_eos() {
        Ok(mask) if mask.as_slice().len() >= count => {
            words.copy_from_slice(&mask.as_slice()[..count]);
            true
        }
        _ => false,
    })
}

/// The tokens that must come next, at most `room`. Returns their number; -1 if the matcher fails.
///
/// # Safety
/// There is room for `room` ids.
#[no_mangle]
pub unsafe extern "C" fn orcd_matcher_forced(
    matcher: &mut OrcdMatcher,
    ids: *mut u32,
    room: usize,
) -> i64 {
    let ids = std::slice::from_raw_parts_mut(ids, room);
    guarded(-1, || {
        let forced = matcher.matcher.compute_ff_tokens();
        if matcher.matcher.is_error() {
            return -1;
        }
        let count = forced.len().min(room);
        ids[..count].copy_from_slice(&forced[..count]);
        count as i64
    })
}

/// False if the matcher fails, also because the token may not come.
#[no_mangle]
pub extern "C" fn orcd_matcher_accept(matcher: &mut OrcdMatcher, token: u32) -> bool {
    guarded(false, || matcher.matcher.consume_token(token).is_ok())
}

/// Forgets the last tokens; false if the matcher fails, as it does for rules that use `stop` or
/// `max_tokens`.
#[no_mangle]
pub extern "C" fn orcd_matcher_rollback(matcher: &mut OrcdMatcher, count: usize) -> bool {
    guarded(false, || {
        let done = matcher.matcher.rollback(count).is_ok();
        // The library keeps its last mask by the number of lexemes and the lexer's state, which
        // other tokens may lead to as well.
        matcher.matcher.invalidate_bias_cache();
        done
    })
}

/// True if the output must end, and in error.
#[no_mangle]
pub extern "C" fn orcd_matcher_is_stopped(matcher: &OrcdMatcher) -> bool {
    guarded(true, || matcher.matcher.is_stopped())
}

/// True if the output may end.
#[no_mangle]
pub extern "C" fn orcd_matcher_is_accepting(matcher: &mut OrcdMatcher) -> bool {
    guarded(false, || matcher.matcher.is_accepting().unwrap_or(false))
}
