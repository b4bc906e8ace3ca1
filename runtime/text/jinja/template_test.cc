#include "runtime/text/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/text/jinja/render_for_test.h"
#include "runtime/text/jinja/template_cases_for_test.h"

namespace orcd::jinja {
namespace {

using ::testing::StartsWith;

// The clock of tools/jinja_reference.py.
constexpr int kMicroseconds = 4321;

TEST(TemplateTest, SameAsJinja) {
  for (const TemplateCase& test : kTemplateCases) {
    SCOPED_TRACE(test.source);
    const auto pieces = RenderJson(test.source, test.context_json, kMicroseconds);
    if (test.outcome == Outcome::kText) {
      if (!pieces.ok()) {
        ADD_FAILURE() << pieces.status() << "\nexpected: " << test.text;
        continue;
      }
      EXPECT_EQ(Joined(*pieces), test.text);
      EXPECT_TRUE(AreWellFormed(*pieces)) << Bracketed(*pieces);
      continue;
    }
    if (pieces.ok()) {
      ADD_FAILURE() << "rendered: " << Joined(*pieces);
      continue;
    }
    if (test.outcome == Outcome::kRaises) {
      EXPECT_EQ(pieces.status().code(), absl::StatusCode::kInvalidArgument) << pieces.status();
      EXPECT_EQ(std::string(pieces.status().message()), test.text);
    } else {
      EXPECT_THAT(std::string(pieces.status().message()), StartsWith("line "));
    }
  }
}

TEST(TemplateTest, RefusesIntegersOfMoreThan64Bits) {
  for (const std::string_view source : kNeedLongIntegers) {
    const auto pieces = RenderJson(source, kCaseContext);
    EXPECT_EQ(pieces.status().code(), absl::StatusCode::kFailedPrecondition)
        << source << ": " << (pieces.ok() ? Joined(*pieces) : pieces.status().ToString());
  }
}

// A template that needs more than the engine has must not be rendered in another way.
TEST(TemplateTest, RefusesWhatItLacks) {
  for (const std::string_view source : kLacks) {
    const auto pieces = RenderJson(source, kCaseContext);
    EXPECT_FALSE(pieces.ok()) << source << ": " << Joined(*pieces);
    EXPECT_THAT(std::string(pieces.status().message()), StartsWith("line 1: ")) << source;
  }
}

TEST(TemplateTest, ErrorsNameTheLine) {
  constexpr auto kParse = absl::StatusCode::kInvalidArgument;
  constexpr auto kRender = absl::StatusCode::kFailedPrecondition;
  struct Case {
    std::string_view source;
    absl::StatusCode code;
    std::string begins;
  };
  for (const Case& test : std::vector<Case>{
           {"{{ 1 / 0 }}", kRender, "line 1: "},
           {"a\n\n{{ 1 + }}", kParse, "line 3: "},
           {"{% if x %}\n", kParse, "line "},
           {"{% nosuch %}", kParse, "line 1: "},
           {"\n{{ x.y.z }}\n", kRender, "line 2: "},
           {"{#\n\n#}{{ x.y.z }}", kRender, "line 3: "},
           {"{{ '\n\n' }}{{ x.y.z }}", kRender, "line 3: "},
           {"{% raw %}\n\n{% endraw %}{{ x.y.z }}", kRender, "line 3: "},
           {"\n{{ 'a' * 1000000000 }}", absl::StatusCode::kResourceExhausted, "line 2: "}}) {
    const absl::Status status = RenderJson(test.source, "{}").status();
    EXPECT_EQ(status.code(), test.code) << test.source << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(test.begins)) << test.source;
  }
}

TEST(TemplateTest, RefusesLongTemplates) {
  EXPECT_TRUE(Template::Parse(std::string(kMaxTemplateBytes, 'a')).ok());
  EXPECT_EQ(Template::Parse(std::string(kMaxTemplateBytes + 1, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

struct OriginCase {
  std::string_view source;
  // Pieces of the template in brackets.
  std::string_view bracketed;
};

// `u` is the user's "uv", `l` its ["a", "b"], `d` its {"k": "v"}, `n` its number 5.
TEST(TemplateTest, EachByteHasItsOrigin) {
  for (const OriginCase& test : std::vector<OriginCase>{
           {"a{{ u }}b", "[a]uv[b]"},
           {"{{ 'a' + u + 'b' }}", "[a]uv[b]"},
           {"{{ 'a' ~ u ~ 'b' }}", "[a]uv[b]"},
           {"{{ u ~ 'a' 'b' }}", "uv[ab]"},
           {"{{ ('a' + u)[0] }}{{ ('a' + u)[1:] }}", "[a]uv"},
           {"{{ ('a' + u)[::-1] }}", "vu[a]"},
           {"{{ ('<' + u + '>') * 2 }}", "[<]uv[><]uv[>]"},
           {"{{ (' ' + u + ' ')|trim }}{{ (' a ' + u).strip() }}", "uv[a ]uv"},
           {"{{ ('a' + u).lstrip('a') }}{{ (u + 'a').rstrip('av') }}", "uvu"},
           {"{{ (u + '|' + u + '|x').split('|') | join('+') }}", "uv[+]uv[+x]"},
           {"{{ (u + ' x').split()[1] }}{{ (u + '-x').rsplit('-', 1)[1] }}", "[xx]"},
           {"{{ (u + 'x').partition('x')[1] }}", "[x]"},
           {"{{ ('a' + u).replace('v', 'w') }}", "[a]u[w]"},
           {"{{ ('a' + u)|replace('a', u) }}", "uvuv"},
           {"{{ u.replace('v', '') + 'x' }}", "u[x]"},
           {"{{ ('a' + u).upper() }}{{ ('A' + u)|lower }}", "[A]UV[a]uv"},
           {"{{ ('a ' + u)|title }}{{ (u + ' A')|capitalize }}", "[A ]UvUv[ a]"},
           {"{{ l|join(', ') }}", "a[, ]b"},
           {"{{ ', '.join(l) }}", "a[, ]b"},
           {"{{ ['x', u]|join(u) }}", "[x]uvuv"},
           {"{{ '<%s|%s>' % (u, 'x') }}", "[<]uv[|x>]"},
           {"{{ '<{}|{a}>'.format(u, a='x') }}", "[<]uv[|x>]"},
           {"{{ '<%s>'|format(u) }}", "[<]uv[>]"},
           {"{% set x %}<{{ u }}>{% endset %}{{ x }}", "[<]uv[>]"},
           {"{% macro m(x) %}<{{ x }}|{{ u }}>{% endmacro %}{{ m('y') }}", "[<y|]uv[>]"},
           {"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ u }}{% endcall %}",
            "[<]uv[>]"},
           {"{% filter upper %}<{{ u }}a{% endfilter %}", "[<]UV[A]"},
           {"{{ (u + '\nx')|indent(0) }}", "uv\n[x]"},
           {"{{ 'x' if u else u }}{{ u or 'x' }}{{ '' or 'x' }}", "[x]uv[x]"},
           {"{{ u|default('x') }}{{ q|default('x') }}", "uv[x]"},
           {"{{ l|first ~ 'x'|first }}{{ ('x' ~ u)|list|last }}", "a[x]v"},
           {"{{ {'a': 'x'}.a }}{{ {'a': u}['a'] }}{{ d.k }}{{ d.get('q', 'x') }}", "[x]uvv[x]"},
           {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "k[=]v[;]"},
           {"{% for c in '<' + u %}{{ c }}{% endfor %}", "[<]uv"},
           {"{% for k in {'x': u} %}{{ k }}{% endfor %}", "[x]"},
           {"{% set ns = namespace(t='<') %}{% set ns.t = ns.t + u %}{{ ns.t }}", "[<]uv"},
           {"{{ [u, '<']|map('upper')|join }}", "UV[<]"},
           {"{{ ['x', u]|sort|join }}{{ ['b', u]|max }}", "uv[x]uv"},
           {"{{ [u, 'uv', 'x']|unique|join('|') }}", "uv[|x]"},
           {"{% generation %}<{{ u }}>{% endgeneration %}", "[<]uv[>]"},
           {"{% raw %}{{{% endraw %}{{ u }}", "[{{]uv"},
           {"{{ u|safe + '<' }}{{ '<'|e }}", "uv[&lt;&lt;]"},
           {"{{ u|tojson }}{{ n }}{{ d }}{{ l|string }}{{ n|string }}",
            "\"uv\"5{'k': 'v'}['a', 'b']5"},
           {"{{ '' }}{{ u[:0] }}", ""},
       }) {
    SCOPED_TRACE(test.source);
    const auto pieces =
        RenderJson(test.source, R"({"u": "uv", "l": ["a", "b"], "d": {"k": "v"}, "n": 5})");
    if (!pieces.ok()) {
      ADD_FAILURE() << pieces.status();
      continue;
    }
    EXPECT_EQ(Bracketed(*pieces), test.bracketed);
  }
}

TEST(TemplateTest, TheWorkersStringsAreTheTemplates) {
  const auto chat_template = Template::Parse("{{ bos }}{{ role ~ u }}{{ role|upper }}");
  ASSERT_TRUE(chat_template.ok());
  Context context(TestNow());
  context.Set("bos", context.String("<s>", Origin::kTemplate));
  context.Set("role", context.String("user", Origin::kTemplate));
  context.Set("u", context.String("hi"));
  const auto pieces = chat_template->Render(context);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  EXPECT_EQ(Bracketed(*pieces), "[<s>user]hi[USER]");
}

TEST(TemplateTest, TheLastValueOfANameCounts) {
  const auto chat_template = Template::Parse("{{ a }}");
  ASSERT_TRUE(chat_template.ok());
  Context context(TestNow());
  context.Set("a", Value::Int(1));
  context.Set("a", Value::Int(2));
  EXPECT_EQ(Joined(*chat_template->Render(context)), "2");
}

}  // namespace
}  // namespace orcd::jinja
