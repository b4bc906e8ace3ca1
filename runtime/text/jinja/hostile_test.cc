// Templates that are written to crash an engine, to hang it or to exhaust its memory. Each runs in
// a process of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/text/jinja/render_for_test.h"
#include "runtime/text/jinja/template.h"
#include "testing/sanitized.h"

namespace orcd::jinja {
namespace {

// Sanitizers keep freed memory and have shadow memory of their own, so theirs is not judged.
constexpr double kMaxSeconds = testing::kSanitized ? 10 : 1;
constexpr int64_t kMaxBytes = testing::kSanitized ? INT64_MAX : int64_t{64} << 20;

// The bytes of a template that are made to be many, which leaves some for the rest.
constexpr size_t kMostBytes = kMaxTemplateBytes - 4096;

std::string Repeat(std::string_view part, size_t count) {
  std::string text;
  text.reserve(part.size() * count);
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

// `part` as often as a template may have it.
std::string Fill(std::string_view part) { return Repeat(part, kMostBytes / part.size()); }

// `{{ 0 }}`, with `open` before and `close` after the 0, nested as deep as the template may be
// long.
std::string Nest(std::string_view open, std::string_view close) {
  const size_t depth = kMostBytes / (open.size() + close.size());
  return absl::StrCat("{{ ", Repeat(open, depth), "0", Repeat(close, depth), " }}");
}

// As Nest, in place of the expression a body of tags.
std::string NestTags(std::string_view open, std::string_view close) {
  const size_t depth = kMostBytes / (open.size() + close.size());
  return absl::StrCat(Repeat(open, depth), "x", Repeat(close, depth));
}

// `template_body` after 40 doublings of `x`, which begins as `start`.
std::string Doubled(const std::string& start, const std::string& body) {
  return absl::StrCat("{% set x = ", start, " %}", Repeat("{% set x = x + x %}", 40), body);
}

struct Hostile {
  std::string name;
  std::string source;
  std::string context = "{}";
};

std::vector<Hostile> HostileTemplates() {
  std::vector<Hostile> all;
  const auto add = [&](std::string name, std::string source) {
    all.push_back({std::move(name), std::move(source)});
  };
  // Depth of the parser.
  add("parentheses", Nest("(", ")"));
  add("open parentheses", "{{ " + Fill("("));
  add("lists", Nest("[", "]"));
  add("open lists", "{{ " + Fill("["));
  add("tuples", Nest("(", ",)"));
  add("dicts", Nest("{'a':", "}"));
  add("open dicts", "{{ " + Fill("{1:"));
  add("calls", Nest("f(", ")"));
  add("subscripts", Nest("a[", "]"));
  add("slices", Nest("a[1:", "]"));
  add("filter arguments", Nest("1|d(", ")"));
  add("test arguments", Nest("1 is eq(", ")"));
  add("nested inline ifs", Nest("1 if 1 else (", ")"));
  add("dict in call in list", Nest("[f({'a':", "})]"));
  add("ifs", NestTags("{% if 1 %}", "{% endif %}"));
  add("fors", NestTags("{% for x in [1] %}", "{% endfor %}"));
  add("open fors", Fill("{% for x in 'ab' %}"));
  add("withs", NestTags("{% with %}", "{% endwith %}"));
  add("macros", NestTags("{% macro m() %}", "{% endmacro %}"));
  add("set blocks", NestTags("{% set x %}", "{% endset %}"));
  add("filter blocks", NestTags("{% filter upper %}", "{% endfilter %}"));
  add("generations", NestTags("{% generation %}", "{% endgeneration %}"));
  add("call blocks",
      "{% macro m() %}{{ caller() }}{% endmacro %}" + NestTags("{% call m() %}", "{% endcall %}"));
  add("tuple targets", "{% for " + Repeat("(", kMostBytes / 3) + "x" +
                           Repeat(",)", kMostBytes / 3) + " in [] %}{% endfor %}");
  // Long chains.
  add("nots", "{{ " + Fill("not ") + "1 }}");
  add("minuses", "{{ " + Fill("-") + "1 }}");
  add("pluses", "{{ " + Fill("+ ") + "1 }}");
  add("trims", "{{ 'a'" + Fill("|trim") + " }}");
  add("lists of a list", "{{ [1]" + Fill("|list") + " }}");
  add("maps", "{{ [1]" + Fill("|map('int')") + "|list }}");
  add("reverses", "{{ 'ab'" + Fill("|reverse") + " }}");
  add("tests", "{{ 1" + Fill(" is true") + " }}");
  add("concatenations", "{{ 1" + Fill("~1") + " }}");
  add("sums", "{{ 1" + Fill("+1") + " }}");
  add("sums of strings", "{{ 'a'" + Fill("+'a'") + " }}");
  add("sums of a long string", absl::StrCat("{% set x = 'a' * 100000 %}{{ x", Fill("+x"), " }}"));
  add("sums of a list", "{% set x = [1] * 100 %}{{ x" + Fill("+x") + " }}");
  add("powers", "{{ 1" + Fill("**1") + " }}");
  add("comparisons", "{{ 1" + Fill("<2") + " }}");
  add("ors", "{{ 0" + Fill(" or 0") + " }}");
  add("ands", "{{ 1" + Fill(" and 1") + " }}");
  add("attributes", "{{ a" + Fill(".a") + " }}");
  add("attributes of a namespace",
      "{% set a = namespace() %}{% set a.a = a %}{{ a" + Fill(".a") + " }}");
  add("subscript chain", "{% set a = namespace() %}{% set a.a = a %}{{ a" + Fill("['a']") + " }}");
  add("call chain", "{{ a" + Fill("()") + " }}");
  add("method chain", "{{ 'a'" + Fill(".upper()") + " }}");
  add("slice chain", "{{ 'abc'" + Fill("[:]") + " }}");
  add("elifs", "{% if 0 %}" + Fill("{% elif 0 %}") + "{% endif %}");
  add("inline ifs", "{{ 1" + Fill(" if 0 else 1") + " }}");
  add("string literals", "{{ " + Fill("'a' ") + " }}");
  add("list items", "{{ [" + Fill("1,") + "] }}");
  add("dict items", "{{ {" + Fill("1:1,") + "} }}");
  add("arguments", "{{ f(" + Fill("1,") + ") }}");
  add("tags", Fill("{{1}}"));
  add("comments", Fill("{##}"));
  add("open tags", Fill("{{"));
  add("open comments", Fill("{#"));
  add("raws", Fill("{%raw%}{%endraw%}"));
  add("newlines before tags", Fill("\n") + "{%- if 1 %}{%- endif %}");
  add("spaces before many tags", Fill("          {% if 1 %}  {%- endif %}"));
  add("filters of a block", "{% filter upper" + Fill("|upper") + " %}a{% endfilter %}");
  add("parameters", "{% macro m(" + Fill("aaaaaaaaaa,") + "b) %}{% endmacro %}{{ m() }}");
  add("names", "{% set " + Fill("abcdefgh,") + "b = [] %}");
  add("many variables", [] {
    std::string source;
    for (int i = 0; source.size() < kMostBytes; ++i)
      absl::StrAppend(&source, "{% set v", i, "=1 %}");
    return source + "{% for i in range(100000) %}{% for j in [1] %}{{ i }}{% endfor %}{% endfor %}";
  }());
  add("a digit string", "{{ " + Fill("9") + " }}");
  add("a long float", "{{ 0." + Fill("9") + " }}");
  add("an exponent", "{{ 1e999999999 }}{{ 1e-999999999 }}");
  add("escapes", "{{ '" + Fill("\\u00e9") + "' }}");
  add("unclosed string", "{{ '" + Fill("\\'"));
  // Doubling.
  add("doubled string", Doubled("'ab'", "{{ x }}"));
  add("doubled string, unused", Doubled("'ab'", ""));
  add("doubled list", Doubled("[1, 2]", "{{ x }}"));
  add("doubled tuple", Doubled("(1, 2)", "{{ x|length }}"));
  add("doubled nest", "{% set x = [1] %}" + Repeat("{% set x = [x, x] %}", 60) + "{{ x }}");
  add("doubled nest as JSON",
      "{% set x = [1] %}" + Repeat("{% set x = [x, x] %}", 60) + "{{ x|tojson }}");
  add("doubled nest compared", "{% set x = [1] %}{% set y = [1] %}" +
                                   Repeat("{% set x = [x, x] %}{% set y = [y, y] %}", 60) +
                                   "{{ x == y }}{{ x < y }}");
  add("doubled nest as a key", "{% set x = (1,) %}" + Repeat("{% set x = (x, x) %}", 60) +
                                   "{{ {x: 1} }}{{ [x]|unique|list }}");
  add("doubled nest sorted", "{% set x = [1] %}" + Repeat("{% set x = [x, x] %}", 60) +
                                 "{{ [x, x, x]|sort }}{{ [x, x]|max }}");
  add("doubled dicts",
      "{% set x = {} %}" + Repeat("{% set x = {'a': x, 'b': x} %}", 60) + "{{ x }}");
  add("doubled by concatenation",
      "{% set x = 'ab' %}" + Repeat("{% set x = x ~ x %}", 40) + "{{ x }}");
  add("doubled by format",
      "{% set x = 'ab' %}" + Repeat("{% set x = '%s%s' % (x, x) %}", 40) + "{{ x }}");
  add("doubled by str.format",
      "{% set x = 'ab' %}" + Repeat("{% set x = '{0}{0}'.format(x) %}", 40) + "{{ x }}");
  add("doubled by replace",
      "{% set x = 'aa' %}" + Repeat("{% set x = x|replace('a', 'aa') %}", 40) + "{{ x }}");
  add("doubled by join",
      "{% set x = 'ab' %}" + Repeat("{% set x = [x, x]|join(x) %}", 40) + "{{ x }}");
  add("doubled by a block",
      "{% set x = 'ab' %}" + Repeat("{% set x %}{{ x }}{{ x }}{% endset %}", 40) + "{{ x }}");
  add("doubled by escapes", "{% set x = '&' %}" +
                                Repeat("{% set x = x|forceescape|string %}", 1000) +
                                Repeat("{% set x = (x ~ x)|forceescape|string %}", 40) + "{{ x }}");
  add("doubled by tojson", "{% set x = '\"' %}" + Repeat("{% set x = x|tojson %}", 40) + "{{ x }}");
  add("doubled by repr",
      "{% set x = '\\\\' %}" + Repeat("{% set x = [x]|string %}", 40) + "{{ x }}");
  add("doubled in a loop",
      "{% set ns = namespace(x='ab') %}{% for i in range(100000) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}{{ ns.x }}");
  add("grown in a loop",
      "{% set ns = namespace(x='') %}{% for i in range(100000) %}{% set ns.x = ns.x + 'a' %}"
      "{% endfor %}{{ ns.x|length }}");
  add("a list grown in a loop",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = ns.x + [i] %}"
      "{% endfor %}{{ ns.x|length }}");
  add("a dict grown in a loop",
      "{% set ns = namespace(x={}) %}{% for i in range(100000) %}"
      "{% set ns.x = dict(ns.x, **{i|string: i}) %}{% endfor %}{{ ns.x|length }}");
  // Sizes.
  add("a string times", "{{ 's' * 10 ** 9 }}");
  add("a string times, long", "{{ 's' * 9223372036854775807 }}");
  add("a list times", "{{ [1] * 10 ** 9 }}");
  add("a list times, long", "{{ [1, 2] * 9223372036854775807 }}");
  add("a tuple times", "{{ (0,) * 10 ** 9 }}");
  add("an empty list times", "{{ [] * 9223372036854775807 }}");
  add("a string times, many",
      "{% for i in range(100000) %}{% set x = 's' * 10000000 %}{% endfor %}");
  add("powers of powers", "{{ 9 ** 9 ** 9 ** 9 }}");
  add("big powers", "{{ 10 ** 1000000000 }}{{ (-2) ** 1000000001 }}");
  add("one to a big power", "{{ 1 ** 9223372036854775807 }}{{ (-1) ** 9223372036854775807 }}");
  add("a range", "{{ range(10 ** 18)|list }}");
  add("a range's length", "{{ range(9223372036854775807)|length }}");
  add("a range of both ends", "{{ range(-9223372036854775807, 9223372036854775807)|length }}");
  add("a range joined", "{{ range(100000)|join(',') }}");
  add("many ranges joined",
      "{% for i in range(100000) %}{{ range(100000)|join(',') }}{% endfor %}");
  add("a range in JSON", "{% for i in range(1000) %}{{ range(100000)|list|tojson }}{% endfor %}");
  add("not in a range", "{% for i in range(100000) %}{{ 'a' in range(100000)|list }}{% endfor %}");
  add("indent", "{{ 'a\nb'|indent(1000000000) }}");
  add("indent of many lines", "{{ ('a\n' * 100000)|indent(100000) }}");
  add("indent, negative", "{{ 'a\nb'|indent(-1000000000) }}");
  add("center", "{{ 'a'|center(1000000000) }}{{ 'a'.center(1000000000) }}");
  add("justify", "{{ 'a'.ljust(1000000000) }}{{ 'a'.rjust(1000000000) }}");
  add("zfill", "{{ 'a'.zfill(1000000000) }}");
  add("expandtabs", "{{ 'a\tb'.expandtabs(1000000000) }}");
  add("width of a format", "{{ '%1000000000d' % 1 }}");
  add("precision of a format", "{{ '%.1000000000f' % 1 }}");
  add("width given to a format", "{{ '%*d' % (1000000000, 1) }}{{ '%.*f' % (1000000000, 1.0) }}");
  add("width beyond an integer", "{{ '%99999999999999999999d' % 1 }}");
  add("width of str.format", "{{ '{:1000000000}'.format(1) }}{{ '{:.1000000000f}'.format(1.0) }}");
  add("given width of str.format", "{{ '{:{}}'.format(1, 1000000000) }}");
  add("nested fields of str.format",
      "{{ '" + Repeat("{:", kMostBytes / 3) + Repeat("}", kMostBytes / 3) + "'.format(1) }}");
  add("index of str.format", "{{ '{99999999999999999999}'.format(1) }}");
  add("indent of JSON", "{{ [[[1]]]|tojson(indent=1000000000) }}");
  add("long indent of JSON", "{{ [[[1]]]|tojson(indent='a' * 10000000) }}");
  add("deep indent of JSON",
      "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"
      "{{ ns.x|tojson(indent=1000) }}");
  add("replace of nothing", "{{ ('a' * 1000000)|replace('', 'b' * 1000000) }}");
  add("replace by much", "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}");
  add("replace in many",
      "{% for i in range(100000) %}{{ ('a' * 10000)|replace('a', '') }}{% endfor %}");
  add("split into millions",
      "{{ ('a ' * 2000000).split()|length }}{{ ('a,' * 2000000).split(',')|length }}");
  add("splitlines", "{{ ('\n' * 2000000).splitlines()|length }}");
  add("list of characters", "{{ ('é' * 2000000)|list|length }}");
  add("join by much", "{{ range(100000)|join('a' * 100000) }}");
  add("search that almost finds", "{{ ('a' * 1000000).find('a' * 500000 + 'b') }}");
  add("count that almost finds",
      "{{ ('a' * 1000000).count('a' * 500000 + 'b') }}"
      "{{ ('a' * 500000 + 'b') in 'a' * 1000000 }}");
  add("replace that almost finds", "{{ ('a' * 1000000)|replace('a' * 500000 + 'b', 'c')|length }}");
  add("split that almost finds",
      "{{ ('a' * 1000000).split('a' * 500000 + 'b')|length }}"
      "{{ ('a' * 1000000).rsplit('b' + 'a' * 500000)|length }}");
  add("strip of many", "{{ ('a' * 1000000).strip('b' * 1000000 + 'a')|length }}");
  add("wordwrap",
      "{{ ('a' * 1000000)|wordwrap(1)|length }}{{ ('a ' * 100000)|wordwrap(1)|length }}");
  add("truncate", "{{ ('a ' * 1000000)|truncate(1000000) }}");
  add("striptags", "{{ ('<' * 1000000)|striptags }}{{ ('<!--' * 100000)|striptags }}");
  add("title of much", "{{ ('a b' * 1000000)|title|length }}");
  add("urlencode", "{{ ('é' * 1000000)|urlencode|length }}");
  add("slices of a huge range",
      "{{ range(0,-1152921504606846976,-1152921504606846976)[::2][::2][::2][::2]|length }}");
  add("fields within a field",
      "{% set f = '{0:' ~ '{1}' * 20000 ~ '}' %}"
      "{% for i in range(100000) %}{{ f.format(1, '') }}{% endfor %}");
  add("long fields within a field", "{{ ('{0:' ~ '{1}' * 2000000 ~ '}').format('a', 'b' * 300) }}");
  add("a long end of a truncation",
      "{% set p = 'a' * 2000000 %}"
      "{% for i in range(100000) %}{% set x = 'a'|truncate(20000000, true, p) %}{% endfor %}");
  add("a long prefix",
      "{% set p = 'a' * 2000000 %}"
      "{% for i in range(100000) %}{% set x = p.removeprefix(p) %}{% endfor %}");
  add("a long number",
      "{% set p = 'f' * 1000000 %}"
      "{% for i in range(100000) %}{% set x = p|int(0, 16) %}{% endfor %}");
  add("sort of many", "{{ (range(100000)|list * 10)|sort(reverse=true)|length }}");
  add("sort of long strings", "{% set x = 'a' * 1000000 %}{{ ([x] * 1000)|sort|length }}");
  add("unique of many",
      "{{ range(100000)|unique|list|length }}{{ (['a'] * 1000000)|unique|list }}");
  add("unique of lists", "{{ range(20000)|batch(1)|unique|list|length }}");
  add("groupby of many", "{{ (range(100000)|batch(1)|list)|groupby(0)|length }}");
  add("keys that collide",
      "{% set ns = namespace(x={}) %}{% for i in range(10000) %}"
      "{% set ns.x = dict(ns.x, **{(i * 4294967296)|string: 1}) %}{% endfor %}{{ ns.x|length }}");
  add("batch", "{{ range(10)|batch(1000000000, 'x')|list|length }}");
  add("slice", "{{ range(10)|slice(1000000000)|list|length }}");
  add("round", "{{ 1.5|round(1000000000) }}{{ 1.5|round(-1000000000) }}");
  add("integer of a long string", "{{ ('9' * 1000000)|int }}{{ ('f' * 1000000)|int(0, 16) }}");
  add("float of a long string", "{{ ('9' * 1000000)|float }}{{ ('1e' + '9' * 1000000)|float }}");
  add("slices with huge steps",
      "{{ 'abc'[::9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}"
      "{{ [1, 2][-9223372036854775807:9223372036854775807:9223372036854775807] }}"
      "{{ range(100000)[::-9223372036854775807] }}");
  add("smallest integer",
      "{% set m = -9223372036854775807 - 1 %}{{ m // -1 }}{{ m % -1 }}{{ -m }}"
      "{{ m|abs }}{{ m * -1 }}{{ 'a'[m] }}{{ 'a'[m:m:m] }}{{ range(m, 9223372036854775807, "
      "1)|length }}");
  add("many slices",
      "{% set x = 'é' * 1000000 %}{% for i in range(100000) %}{{ x[i] }}{% endfor %}");
  add("many lengths",
      "{% set x = 'é' * 1000000 %}{% for i in range(100000) %}{{ x|length }}{% endfor %}");
  add("many comparisons",
      "{% set x = 'a' * 1000000 %}{% set y = 'a' * 1000000 %}"
      "{% for i in range(100000) %}{{ x == y }}{% endfor %}");
  add("many hashes",
      "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ {x: 1}[x] }}{% endfor %}");
  add("strftime",
      "{{ strftime_now('%Y' * 100000)|length }}{{ strftime_now('%99999999Y')|length }}"
      "{{ strftime_now('%' * 100001)|length }}");
  add("strftime of NUL", "{{ strftime_now('a\\x00b%Y') }}");
  add("raise with much", "{{ raise_exception('a' * 10000000) }}");
  // Recursion.
  add("macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  add("macro, twice", "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}");
  add("macro with a bound",
      "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
      "{% endmacro %}{{ m(100) }}");
  add("macro by argument", "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}");
  add("macro by default", "{% macro m(a=m()) %}{{ a }}{% endmacro %}{{ m() }}");
  add("two macros",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
  add("callers", "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}");
  add("caller calls itself",
      "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% call m() %}"
      "{{ caller() }}{% endcall %}{% endcall %}");
  add("macro in a filter",
      "{% macro m(x) %}{{ [1]|map(attribute='a')|list }}{{ m(x)|trim }}{% endmacro %}{{ m(1) }}");
  add("macro in a block",
      "{% macro m() %}{% set x %}{{ m() }}{% endset %}{% filter upper %}{{ m() }}"
      "{% endfilter %}{% endmacro %}{{ m() }}");
  add("macro in an argument", "{% macro m(x) %}{{ m(m(x)) }}{% endmacro %}{{ m(1) }}");
  add("macro in a loop",
      "{% macro m(x) %}{% for i in [1, 2] %}{% for j in [1] %}{{ m(x) }}{% endfor %}"
      "{% endfor %}{% endmacro %}{{ m(1) }}");
  add("recursive loop", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  add("recursive loop, twice", "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}");
  add("recursive loop in a macro",
      "{% macro m() %}{% for x in [1] recursive %}{{ loop([1]) }}{{ m() }}{% endfor %}{% endmacro "
      "%}{{ m() }}");
  add("namespace in itself",
      "{% set a = namespace() %}{% set a.a = a %}{{ a }}{{ [a] }}{{ a|tojson }}");
  add("namespaces in each other",
      "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b, b] %}"
      "{{ a }}{{ [a, b]|join }}{{ a|string }}{{ '%s' % a }}{{ '{}'.format(b) }}");
  add("namespace compared with itself",
      "{% set a = namespace() %}{% set a.a = [a] %}{% set b = namespace() %}"
      "{% set b.a = [b] %}{{ a == b }}{{ a.a == b.a }}{{ a.a in [b.a] }}{{ [a.a, "
      "b.a]|unique|list|length }}");
  add("namespace with its own list",
      "{% set a = namespace(l=[]) %}{% for i in range(100) %}{% set a.l = [a, a.l, a.l] %}{% "
      "endfor %}{{ a }}");
  add("deep list",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}{{ ns.x }}");
  for (const std::string& use : std::vector<std::string>{"|tojson",
                                                         "|string",
                                                         "|join",
                                                         "|list|length",
                                                         " == 1",
                                                         "|sort",
                                                         "|unique|list",
                                                         "|max",
                                                         "|sum",
                                                         "|map('string')|list",
                                                         "|first|last",
                                                         "|default('x')",
                                                         "|e",
                                                         "|tojson(indent=2)",
                                                         "|pprint",
                                                         "|upper",
                                                         "|length",
                                                         "|safe",
                                                         "|dictsort",
                                                         "|items|list",
                                                         "|format",
                                                         "|int",
                                                         "|batch(1)|list"}) {
    add(absl::StrCat("deep list", use),
        absl::StrCat(
            "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x, 1] %}"
            "{% endfor %}{{ ns.x",
            use, " }}"));
  }
  add("deep lists compared",
      "{% set ns = namespace(x=[], y=[]) %}{% for i in range(100000) %}"
      "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}{{ ns.x < ns.y "
      "}}"
      "{{ ns.x in [ns.y] }}");
  add("deep tuple as a key",
      "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}"
      "{% endfor %}{{ {ns.x: 1}[ns.x] }}{{ [ns.x, ns.x]|unique|list|length }}");
  add("deep dict",
      "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}"
      "{% endfor %}{{ ns.x }}{{ ns.x|tojson }}");
  add("deep attribute", "{{ [1]|map(attribute='" + Repeat("a.", kMostBytes / 2) + "a')|list }}");
  add("deep str.format", "{{ '{0" + Repeat(".a", kMostBytes / 2) + "}'.format({}) }}");
  add("deep generators",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}"
      "{% set ns.x = ns.x|map('int') %}{% endfor %}{{ ns.x|list }}");
  add("deep select",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}"
      "{% set ns.x = ns.x|select %}{% endfor %}{{ ns.x|first }}");
  add("deep batch",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}"
      "{% set ns.x = ns.x|batch(1) %}{% endfor %}{{ ns.x|list }}");
  add("deep reverse",
      "{% set ns = namespace(x=[1, 2]) %}{% for i in range(100000) %}"
      "{% set ns.x = ns.x|reverse %}{% endfor %}{{ ns.x|list }}");
  add("deep undefined",
      "{% set ns = namespace() %}{% for i in range(100000) %}"
      "{% set ns.x = ns['a' ~ i] %}{% endfor %}{{ ns.x }}");
  add("map of map of map",
      "{{ [[[1]]]|map('map', 'map', 'map')|list }}{{ [1]|map('map', 'int')|list }}");
  add("map of itself", "{{ ['map']|map('map', 'map', 'map', 'map')|list|string|length }}");
  add("select by select", "{{ [[1]]|map('select')|map('select')|map('list')|list }}");
  // Loops.
  add("nested loops",
      Repeat("{% for x in range(100000) %}", 8) + "{{ x }}" + Repeat("{% endfor %}", 8));
  add("nested empty loops", Repeat("{% for x in range(100000) %}", 8) + Repeat("{% endfor %}", 8));
  add("loops with nothing but a filter", "{% for x in range(100000) if false %}{% endfor %}" +
                                             Repeat("{% for x in range(100000) %}", 4) +
                                             "{% for y in range(100000) if false %}{% endfor %}" +
                                             Repeat("{% endfor %}", 4));
  add("loop over a loop",
      "{% for x in range(100000) %}{% for y in [loop] %}{{ y }}{{ loop.previtem }}{% endfor %}{% "
      "endfor %}");
  add("loop.changed",
      "{% for x in range(100000) %}{{ loop.changed(range(1000)|list) }}{% endfor %}");
  add("loop.cycle",
      "{% for x in range(100000) %}{{ loop.cycle('" + Repeat("a','", 10000) + "') }}{% endfor %}");
  add("sums of ranges", "{% for x in range(100000) %}{{ range(100000)|sum }}{% endfor %}");
  add("lists of ranges",
      "{% for x in range(100000) %}{% set y = range(100000)|list %}{% endfor %}");
  add("large texts", "{% for x in range(100000) %}{{ 'a' * 100000 }}{% endfor %}");
  add("large blocks",
      "{% for x in range(100000) %}{% set y %}{{ 'a' * 10000 }}{% endset %}{% endfor %}");
  add("large macros",
      "{% macro m() %}{{ 'a' * 10000 }}{% endmacro %}{% for x in range(100000) %}{{ m()|length "
      "}}{% endfor %}");
  add("keyword arguments",
      "{% macro m() %}{{ kwargs|length }}{% endmacro %}{% for x in range(100000) %}{{ m(**{'a': "
      "x}) }}{% endfor %}");
  add("splat",
      "{% macro m() %}{{ varargs|length }}{% endmacro %}{{ m(*range(100000)) }}{{ dict(*[[]] * "
      "100000) }}");
  add("printed undefined",
      "{% for x in range(100000) %}{% for y in range(100000) %}{{ nothing }}{% endfor %}{% endfor "
      "%}");
  add("pieces of either origin", "{% for x in range(100000) %}{{ 'a' }}{{ x }}{% endfor %}");
  add("doubled pieces",
      "{% set ns = namespace(x='a' ~ 1) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}{{ ns.x }}");
  add("alternate origins", "{% set x = (1 ~ 'a') * 1000000 %}{{ x }}");
  add("upper of alternate origins", "{% set x = (1 ~ 'ß') * 1000000 %}{{ x|upper|length }}");
  // Unicode.
  add("growing upper", "{{ ('ΐ' * 1000000)|upper|length }}{{ ('ﬃ' * 1000000)|upper|length }}");
  add("final sigmas", "{{ ('Σ' * 1000000)|lower|length }}{{ ('ΑΣ' * 1000000)|lower|length }}");
  add("ignored before a sigma",
      "{{ ('\u0301' * 1000000 ~ 'Σ')|lower|length }}{{ ('Σ' ~ '\u0301' * 1000000)|lower|length }}"
      "{{ (('Σ' ~ '\u0301' * 1000) * 1000)|lower|length }}");
  add("combining marks", "{{ 'a' ~ '\u0301' * 1000000 }}{{ ('\u0301' * 1000000)|title|length }}");
  add("repr of unprintables", "{{ [('\u200b' * 1000000)]|string|length }}");
  add("invalid UTF-8",
      "\xff\xfe{{ '\xc3' ~ '\xed\xa0\x80' }}{{ '\xf8\x88\x80\x80\x80'|upper }}{{ '\xff'|list }}");
  using std::string_literals::operator""s;
  add("NUL bytes", "a\0b{{ 'c\0d'|upper }}{{ '\0'|length }}"s);
  add("surrogates",
      "{{ '\\ud800' }}{{ '\\ud800\\udc00'|length }}{{ ['\\udfff'] }}{{ '\\ud800'|tojson }}");
  add("code points beyond Unicode",
      "{{ '\\U00110000' }}{{ '\\UFFFFFFFF' }}{{ '%c' % 1114112 }}{{ '%c' % -1 }}");
  // Data.
  std::string deep_json = Repeat("[", 100) + Repeat("]", 100);
  all.push_back(
      {"deep context", "{{ x }}{{ x|tojson }}{{ x == x }}", "{\"x\": " + deep_json + "}"});
  all.push_back({"context deeper than allowed", "{{ x }}",
                 "{\"x\": " + Repeat("[", 1000000) + Repeat("]", 1000000) + "}"});
  all.push_back(
      {"large context", "{{ x|length }}{{ x }}", "{\"x\": \"" + Repeat("é", 1000000) + "\"}"});
  all.push_back(
      {"many messages",
       "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}{{ messages|tojson(indent=4) }}",
       "{\"messages\": [" + Repeat("{\"role\": \"user\", \"content\": \"hi\"},", 20000) + "{}]}"});
  all.push_back({"many keys", "{{ x|length }}{{ x|dictsort|length }}{{ x|tojson|length }}", [] {
                   std::string json = "{\"x\": {";
                   for (int i = 0; i < 50000; ++i) absl::StrAppend(&json, "\"k", i, "\": 1, ");
                   return json + "\"k\": 1}}";
                 }()});
  return all;
}

// The outcome of one template, as its process writes it into a pipe.
struct Report {
  bool rendered = false;
  double seconds = 0;
  int64_t bytes = 0;
  char message[200] = {};
};

int64_t ResidentBytes() {
  long long total = 0, resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%lld %lld", &total, &resident) != 2) _exit(3);
  std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

Report Measure(const Hostile& hostile) {
  // A template without end is killed.
  const rlimit cpu_seconds = {.rlim_cur = 60, .rlim_max = 60};
  setrlimit(RLIMIT_CPU, &cpu_seconds);
  Report report;
  const int64_t before = ResidentBytes();
  {
    const auto pieces = RenderJson(hostile.source, hostile.context);
    report.rendered = pieces.ok();
    const std::string message(pieces.status().message());
    std::strncpy(report.message, message.c_str(), sizeof(report.message) - 1);
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  report.bytes = int64_t{usage.ru_maxrss} * 1024 - before;
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  report.seconds = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  return report;
}

TEST(HostileTest, EachEndsInTimeAndMemory) {
  int rendered = 0;
  int refused = 0;
  for (const Hostile& hostile : HostileTemplates()) {
    SCOPED_TRACE(hostile.name);
    ASSERT_LE(hostile.source.size(), kMaxTemplateBytes);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      const Report report = Measure(hostile);
      _exit(write(ends[1], &report, sizeof(report)) == sizeof(report) ? 0 : 4);
    }
    close(ends[1]);
    Report report;
    const ssize_t read_bytes = read(ends[0], &report, sizeof(report));
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (read_bytes != sizeof(report) || status != 0) {
      ADD_FAILURE() << "the process ended with status " << status << ", signal "
                    << WTERMSIG(status);
      continue;
    }
    ++(report.rendered ? rendered : refused);
    EXPECT_LE(report.seconds, kMaxSeconds) << report.message;
    EXPECT_LE(report.bytes, kMaxBytes) << report.message;
    EXPECT_TRUE(report.rendered || report.message[0] != 0);
  }
  std::printf("%d templates rendered, %d refused\n", rendered, refused);
  EXPECT_GE(rendered, 20);
  EXPECT_GE(refused, 50);
}

}  // namespace
}  // namespace orcd::jinja
