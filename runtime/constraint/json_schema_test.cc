#include "runtime/constraint/json_schema.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Check(const std::string& schema) { return CheckSchema(schema, "f", 16); }

// The schema without the library's option that SchemaForLibrary puts last.
std::string Changed(const std::string& schema) {
  EXPECT_TRUE(Check(schema).ok()) << Check(schema);
  std::string text = SchemaForLibrary(schema);
  const std::string option = R"("x-guidance":{"json_allowed_escapes":"nrbtf\\\""}})";
  EXPECT_TRUE(text.ends_with(option)) << text;
  text.resize(text.size() - option.size());
  if (text.ends_with(',')) text.pop_back();
  return text + "}";
}

struct Refused {
  const char* schema;
  const char* reason;
  const char* message;
};

TEST(JsonSchemaTest, RefusesByPointer) {
  const Refused cases[] = {
      {R"({"not":{}})", "CONSTRAINT_UNSUPPORTED", "f: /not: "},
      {R"({"properties":{"a/b~":{"uniqueItems":true}}})", "CONSTRAINT_UNSUPPORTED",
       "f: /properties/a~1b~0/uniqueItems: "},
      {R"({"anyOf":[{},{"items":{"contains":{}}}]})", "CONSTRAINT_UNSUPPORTED",
       "f: /anyOf/1/items/contains: "},
      {R"({"items":[{},{"propertyNames":{"pattern":"a"}}]})", "CONSTRAINT_UNSUPPORTED",
       "f: /items/1/propertyNames: "},
      {R"({"if":{},"then":{}})", "CONSTRAINT_UNSUPPORTED", "f: /if: "},
      {R"({"dependentRequired":{"a":["b"]}})", "CONSTRAINT_UNSUPPORTED", "f: /dependentRequired: "},
      {R"({"dependencies":{"a":["b"]}})", "CONSTRAINT_UNSUPPORTED", "f: /dependencies: "},
      {R"({"additionalProperties":{"unevaluatedProperties":false}})", "CONSTRAINT_UNSUPPORTED",
       "f: /additionalProperties/unevaluatedProperties: "},
      {R"({"x-guidance":{"lenient":true}})", "CONSTRAINT_UNSUPPORTED", "f: /x-guidance: "},
      {R"({"$ref":"http://example.com/a"})", "CONSTRAINT_UNSUPPORTED", "f: /$ref: "},
      {R"({"properties":{"a":{"$id":"b","items":{"$ref":"#"}}}})", "CONSTRAINT_UNSUPPORTED",
       "f: /properties/a/items/$ref: "},
      {R"({"$ref":"#/$defs/a/items","$defs":{"a":{"$id":"b","items":{}}}})",
       "CONSTRAINT_UNSUPPORTED", "f: /$ref: "},
      {R"({"format":"uri-reference"})", "CONSTRAINT_UNSUPPORTED", "f: /format: "},
      {R"({"const":9007199254740993})", "CONSTRAINT_UNSUPPORTED", "f: /const: "},
      {R"({"enum":[1,{"a":[-9007199254740993]}]})", "CONSTRAINT_UNSUPPORTED", "f: /enum: "},
      {R"({"minimum":9007199254740993})", "CONSTRAINT_UNSUPPORTED", "f: /minimum: "},
      {R"({"minProperties":2})", "CONSTRAINT_UNSUPPORTED", "f: /minProperties: "},
      {R"({"format":"date","pattern":"a","allOf":[]})", "CONSTRAINT_UNSUPPORTED", "f: /format: "},
      // A schema that only a reference leads to.
      {R"({"$ref":"#/components/a%20b/1","components":{"a b":[0,{"not":{}}]}})",
       "CONSTRAINT_UNSUPPORTED", "f: /components/a%20b/1/not: "},
      {R"({"$ref":"#/$defs/a"})", "CONSTRAINT_INVALID", "f: /$ref: "},
      {R"({"$ref":3})", "CONSTRAINT_INVALID", "f: /$ref: "},
      {"3", "CONSTRAINT_INVALID", "f: the schema: "},
      {R"({"properties":{"a":1}})", "CONSTRAINT_INVALID", "f: /properties/a: "},
      {R"({"properties":[]})", "CONSTRAINT_INVALID", "f: /properties: "},
      {R"({"anyOf":{}})", "CONSTRAINT_INVALID", "f: /anyOf: "},
      {R"({"type":"text"})", "CONSTRAINT_INVALID", "f: /type: "},
      {R"({"type":["null",1]})", "CONSTRAINT_INVALID", "f: /type: "},
      {R"({"enum":"a"})", "CONSTRAINT_INVALID", "f: /enum: "},
      {R"({"minItems":-1})", "CONSTRAINT_INVALID", "f: /minItems: "},
      {R"({"minItems":1.5})", "CONSTRAINT_INVALID", "f: /minItems: "},
      {R"({"maximum":"1"})", "CONSTRAINT_INVALID", "f: /maximum: "},
      {R"({"minimum":true})", "CONSTRAINT_INVALID", "f: /minimum: "},
      {R"({"multipleOf":0})", "CONSTRAINT_INVALID", "f: /multipleOf: "},
      {R"({"pattern":1})", "CONSTRAINT_INVALID", "f: /pattern: "},
      {R"({"pattern":"(a"})", "CONSTRAINT_INVALID", "f: /pattern: a group is not closed"},
      {R"({"items":{"pattern":"\\bword"}})", "CONSTRAINT_UNSUPPORTED",
       "f: /items/pattern: word boundaries"},
      {R"x({"patternProperties":{"a/(?=b)":{}}})x", "CONSTRAINT_UNSUPPORTED",
       "f: /patternProperties/a~1(?=b): look-around"},
      {R"({"patternProperties":{"^a/b$":{"type":"integer"},"^a\\/b$":{"maximum":5}}})",
       "CONSTRAINT_UNSUPPORTED", "f: /patternProperties: two of the patterns"},
      {R"({"properties":{"\u0000":{}},"patternProperties":{"^a":{"type":"null"}}})",
       "CONSTRAINT_UNSUPPORTED", "f: /patternProperties: a property's name has U+0000"},
      {R"({"patternProperties":{"^\\d$":{"type":"null"},"^a":{}},"additionalProperties":false})",
       "CONSTRAINT_UNSUPPORTED", "f: /patternProperties/^\\d$: "},
      {R"({"patternProperties":{"^.$":{"type":"null"}},"additionalProperties":{"minimum":1}})",
       "CONSTRAINT_UNSUPPORTED", "f: /patternProperties/^.$: "},
      {R"({"patternProperties":{"^\\w$":{"type":"null"}},"additionalProperties":false,
           "properties":{"é":{}}})",
       "CONSTRAINT_UNSUPPORTED", "f: /patternProperties/^\\w$: "},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","exclusiveMinimum":true})",
       "CONSTRAINT_INVALID", "f: /exclusiveMinimum: is not a number"},
      {R"({"$schema":"http://json-schema.org/draft-04/schema#","exclusiveMinimum":3})",
       "CONSTRAINT_INVALID", "f: /exclusiveMinimum: is not a boolean"},
      {R"({"a":1,"a":2})", "CONSTRAINT_INVALID", "f: has the name \"a\" twice"},
      {R"({"multipleOf":1001})", "CONSTRAINT_TOO_LARGE", "f: /multipleOf: "},
      {R"({"multipleOf":0.0005})", "CONSTRAINT_TOO_LARGE", "f: /multipleOf: "},
      {R"({"multipleOf":1e-9})", "CONSTRAINT_TOO_LARGE", "f: /multipleOf: "},
      {R"({"multipleOf":999.999})", "CONSTRAINT_TOO_LARGE", "f: /multipleOf: "},
      {R"({"allOf":[{"multipleOf":997},{"multipleOf":991}]})", "CONSTRAINT_TOO_LARGE",
       "f: the common multiple"},
      {R"({"minLength":3000000000})", "CONSTRAINT_TOO_LARGE", "f: /minLength: "},
      // Names may be spelled in two ways.
      {R"({"properties":{"a":{},"b":{"const":"\u0001"}}})", "CONSTRAINT_UNSUPPORTED",
       "f: /properties: a string of the schema has a control character"},
      {R"({"prefixItems":[{"enum":[{"\u007f":1}]},{"patternProperties":{"^a":{}}}]})",
       "CONSTRAINT_UNSUPPORTED", "f: /prefixItems/1/patternProperties: a string"},
      {R"({"required":["\u0000"]})", "CONSTRAINT_UNSUPPORTED", "f: /required: a string"},
      // The library takes these bounds as inclusive, and no number between them can be meant.
      {R"({"exclusiveMinimum":1700000000,"exclusiveMaximum":1700000000.5})",
       "CONSTRAINT_UNSUPPORTED", "f: /exclusiveMinimum: "},
      {R"({"minimum":1700000000.5,"maximum":1700000001,"exclusiveMaximum":true})",
       "CONSTRAINT_UNSUPPORTED", "f: /maximum: "},
      {R"({"exclusiveMinimum":2000000000,"allOf":[{"maximum":2000000000.5}]})",
       "CONSTRAINT_UNSUPPORTED", "f: /exclusiveMinimum: "},
      {R"({"exclusiveMinimum":5,"allOf":[{"maximum":5.0000001}]})", "CONSTRAINT_UNSUPPORTED",
       "f: /exclusiveMinimum: "},
      {R"({"maximum":-5,"exclusiveMaximum":true,"minimum":-5.0000001})", "CONSTRAINT_UNSUPPORTED",
       "f: /maximum: "},
  };
  for (const Refused& c : cases) {
    const absl::Status status = Check(c.schema);
    EXPECT_EQ(GetErrorDetails(status).reason, c.reason) << c.schema;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.schema;
    EXPECT_EQ(GetErrorDetails(status).field, "f");
  }
}

TEST(JsonSchemaTest, AcceptsWhatIsEnforcedOrAnnotates) {
  for (
      const char* schema : {
          "true",
          "false",
          "{}",
          R"({"$schema":"http://json-schema.org/draft-07/schema#","title":"a","description":"b",
               "default":3,"examples":[{"not":1}],"$comment":"c","readOnly":true,"deprecated":true,
               "nullable":true,"contentMediaType":"text/plain"})",
          R"({"type":["object","null"],"properties":{"not":{"type":"string"},"if":true},
               "required":["not"],"additionalProperties":false,"minProperties":1})",
          R"({"const":{"not":1,"$ref":"x"},"enum":[{"if":1}]})",
          R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"type":"null"}},"$ref":"#/$defs/a"})",
          R"({"properties":{"a":{"$anchor":"x","type":"null"},"b":{"$ref":"#x"}}})",
          R"({"enum":[0.5,9007199254740992,1e300,-3,18446744073709551615.0]})",
          R"({"type":"integer","maximum":9223372036854775807,"minimum":-9223372036854775808})",
          R"({"multipleOf":0.01,"properties":{"a":{"multipleOf":1000},"b":{"multipleOf":7}}})",
          R"({"minProperties":3,"required":["a","b"]})",
          R"({"minProperties":3,"additionalProperties":false,"properties":{"a":{},"b":{},"c":{}}})",
          R"({"exclusiveMinimum":true,"minimum":3})",
          R"({"$schema":"http://json-schema.org/draft-04/schema#","exclusiveMaximum":false})",
      }) {
    EXPECT_TRUE(Check(schema).ok()) << Check(schema);
  }
}

TEST(JsonSchemaTest, KeepsOrderAndValues) {
  EXPECT_EQ(Changed(R"({ "type":"object", "properties":{"z":{"const":"é\n"},"a":{"minimum":1.50}},
                         "examples":[] })"),
            R"({"type":"object","properties":{"z":{"const":"é\n"},"a":{"minimum":1.5}},)"
            R"("examples":[]})");
  EXPECT_EQ(SchemaForLibrary("true"), "true");
  EXPECT_EQ(Changed("{}"), "{}");
}

TEST(JsonSchemaTest, AllowsUnicodeEscapesWhereDocumentsNeedThem) {
  for (const char* schema :
       {R"({"const":"\u0000"})", R"({"enum":[1,["\u001f"]]})", R"({"const":{"a\u000b":1}})",
        R"({"properties":{"\u0001":{}},"additionalProperties":false})",
        R"({"items":{"type":"string"},"prefixItems":[{"enum":["\u0001"]}]})",
        R"({"type":"array","prefixItems":[{"enum":["\u0001"]}],"properties":{"a":{}}})"}) {
    EXPECT_TRUE(Check(schema).ok()) << Check(schema);
    EXPECT_EQ(SchemaForLibrary(schema), schema);
  }
  EXPECT_EQ(Changed(R"({"const":"\u00e9\n"})"), R"({"const":"é\n"})");
  // Elsewhere, the characters are in no document.
  const std::string annotated =
      R"({"properties":{"a":{}},"description":"\u0001","examples":["\u0001"]})";
  EXPECT_EQ(Changed(annotated), annotated);
  EXPECT_THAT(Changed(R"({"properties":{"a":{"pattern":"^[^\\u0000-\\u001F]+$"}}})"),
              HasSubstr("properties"));
}

TEST(JsonSchemaTest, DropsWhatHasNoEffect) {
  EXPECT_EQ(Changed(R"({"uniqueItems":false,"not":false,"unevaluatedItems":true,"then":{},
                        "dependentRequired":{},"minContains":2,"propertyNames":{},"type":"null"})"),
            R"({"type":"null"})");
  EXPECT_EQ(Changed(R"({"if":{"not":{}}})"), "{}");
  EXPECT_EQ(Changed(R"({"$id":"https://example.com/a","$schema":"https://example.com/b"})"), "{}");
  EXPECT_EQ(Changed(R"({"properties":{"$id":{"$id":"x"},"a":{"$id":"#/a"},"b":{"$id":"#b"}}})"),
            R"({"properties":{"$id":{},"a":{},"b":{"$id":"#b"}}})");
  EXPECT_EQ(Changed(R"({"$schema":"http://json-schema.org/draft-04/schema#","id":"x","items":
                        {"$ref":"#/definitions/a","type":"null","not":1,"title":"b"},
                        "definitions":{"a":{"id":"c"}}})"),
            R"({"$schema":"http://json-schema.org/draft-04/schema#","items":)"
            R"({"$ref":"#/definitions/a","title":"b"},"definitions":{"a":{}}})");
  EXPECT_EQ(Changed(R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/$defs/a",
                        "$defs":{"a":{}},"type":"null"})"),
            R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/$defs/a",)"
            R"("$defs":{"a":{}}})");
  EXPECT_EQ(Changed(R"({"$schema":"http://json-schema.org/draft-07/schema#",
                        "items":{"$schema":"http://json-schema.org/draft-04/schema"}})"),
            R"({"$schema":"http://json-schema.org/draft-07/schema#","items":{}})");
  EXPECT_EQ(Changed(R"({"maxLength":9007199254740991,"minLength":2.0})"), R"({"minLength":2})");
  EXPECT_EQ(Changed(R"({"format":"password"})"), "{}");
  EXPECT_EQ(Changed(R"({"type":"integer","format":"int64"})"),
            R"({"type":"integer","format":"int64"})");
  // Names that are data.
  EXPECT_EQ(Changed(R"({"const":{"uniqueItems":false,"$id":1}})"),
            R"({"const":{"uniqueItems":false,"$id":1}})");
}

TEST(JsonSchemaTest, WritesWhatTheLibraryWouldMisread) {
  EXPECT_EQ(Changed(R"({"prefixItems":[{}],"items":false,"additionalItems":false})"),
            R"({"prefixItems":[{}],"items":false})");
  EXPECT_EQ(Changed(R"({"items":[{}],"anyOf":[{}],"additionalItems":false})"),
            R"({"items":[{}],"additionalItems":false,"anyOf":[{}]})");
  EXPECT_EQ(Changed(R"({"anyOf":[{}],"type":"null"})"), R"({"anyOf":[{}],"type":"null"})");
  EXPECT_EQ(Changed(R"({"pattern":"[[]","patternProperties":{"[&]":{"pattern":"a"}}})"),
            R"({"pattern":"[\\[]","patternProperties":{"[\\&]":{"pattern":"a"}}})");
  EXPECT_THAT(Changed(R"({"format":"date"})"), HasSubstr(R"({"pattern":"^(?:)"));
  EXPECT_THAT(Changed(R"({"maxLength":9,"format":"hostname"})"),
              HasSubstr(R"({"maxLength":9,"allOf":[{"pattern":"^(?:)"));
  EXPECT_THAT(Changed(R"({"pattern":"a","format":"date"})"),
              HasSubstr(R"({"pattern":"a","allOf":[{"pattern":"^(?:)"));
}

TEST(JsonSchemaTest, ReadsPatternsOfNamesSoThatNothingIsLost) {
  EXPECT_EQ(Changed(R"({"patternProperties":{"^\\d$":{"type":"null"},"^.a$":{}}})"),
            R"({"patternProperties":{"^[\\p{Nd}]$":{"type":"null"},"^[^\\n]a$":{}}})");
  EXPECT_EQ(Changed(R"({"patternProperties":{"^\\d$":{"type":"null"}},)"
                    R"("additionalProperties":false,"properties":{"a b":{}}})"),
            R"({"patternProperties":{"^[0-9]$":{"type":"null"}},)"
            R"("additionalProperties":false,"properties":{"a b":{}}})");
  EXPECT_EQ(Changed(R"({"patternProperties":{"^\\d$":{},"^a$":{"type":"null"}},)"
                    R"("additionalProperties":{"type":"null"}})"),
            R"({"patternProperties":{"^[0-9]$":{},"^a$":{"type":"null"}},)"
            R"("additionalProperties":{"type":"null"}})");
}

TEST(JsonSchemaTest, FindsKeywords) {
  const std::string schema =
      R"({"oneOf":[{}],"properties":{"a":{"oneOf":[]},"oneOf":{}},"const":{"oneOf":1}})";
  EXPECT_THAT(FindKeyword(schema, "oneOf", 9), ElementsAre("/oneOf", "/properties/a/oneOf"));
  EXPECT_THAT(FindKeyword(schema, "oneOf", 1), ElementsAre("/oneOf"));
}

TEST(JsonSchemaTest, TakesHostileSchemas) {
  EXPECT_EQ(GetErrorDetails(Check(std::string(1 << 20, '['))).reason, "CONSTRAINT_TOO_LARGE");
  std::string deep = "{}";
  for (int i = 0; i < 16; ++i) deep.insert(0, "{\"items\":").append("}");
  EXPECT_EQ(GetErrorDetails(Check(deep)).reason, "CONSTRAINT_TOO_LARGE");

  // A long name above many schemas, each of which has an error's path through it.
  std::string long_path = "{\"properties\":{\"" + std::string(1 << 20, 'a') + "\":{\"anyOf\":[";
  for (int i = 0; i < 100'000; ++i) long_path += "{},";
  long_path += "{\"not\":{}}]}}}";
  const absl::Status status = Check(long_path);
  EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINT_UNSUPPORTED");
  EXPECT_LE(status.message().size(), 400u);

  std::string chain = "{\"$defs\":{";
  for (int i = 0; i < 2100; ++i) {
    chain +=
        "\"a" + std::to_string(i) + "\":{\"$ref\":\"#/$defs/a" + std::to_string(i + 1) + "\"},";
  }
  chain += "\"a2100\":{}},\"$ref\":\"#/$defs/a0\"}";
  EXPECT_EQ(GetErrorDetails(Check(chain)).reason, "CONSTRAINT_TOO_LARGE");
}

TEST(JsonSchemaTest, FollowsRecursionInLinearTime) {
  constexpr int kLevels = 10'000;
  std::string deep = R"({"$defs":{"0":{"type":"null"}},"allOf":[)";
  for (int i = 0; i < kLevels; ++i) deep += R"({"type":"array","minItems":1,"items":)";
  deep.append(R"({"$ref":"#/$defs/0"})").append(kLevels, '}').append("]}");
  EXPECT_TRUE(CheckSchema(deep, "f", 2 * kLevels).ok());

  // Each schema is found to end one after the other, against their order.
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 1'900; ++i) {
    chain += "\"" + std::to_string(i) + R"(":{"type":"object","required":["a"],"properties":{)" +
             R"("a":{"$ref":"#/$defs/)" + std::to_string(i + 1) + "\"}}},";
  }
  chain += R"("1900":{"anyOf":[)";
  for (int i = 0; i < 50'000; ++i) chain += R"({"$ref":"#/$defs/0"},)";
  EXPECT_TRUE(Check(chain + "{}]}}}").ok());
  EXPECT_EQ(GetErrorDetails(Check(chain + "false]}}}")).reason, "CONSTRAINT_UNSATISFIABLE");

  // Many schemas, each of which joins many with many names.
  std::string joined = R"({"$defs":{"a":{"additionalProperties":{},"required":["a")";
  for (int i = 0; i < 20'000; ++i) joined += R"(,"a")";
  joined += R"(],"allOf":[{})";
  for (int i = 0; i < 60; ++i) joined += R"(,{"additionalProperties":{}})";
  joined += R"(]}},"anyOf":[{})";
  for (int i = 0; i < 1'900; ++i) joined += R"(,{"$ref":"#/$defs/a","title":"b"})";
  EXPECT_TRUE(Check(joined + "]}").ok());
}

// The library computes these without a bound.
TEST(JsonSchemaTest, RefusesPatternsThatMeetInNumbers) {
  std::string together;
  std::string apart;
  for (int i = 0; i < 25; ++i) {
    const std::string pattern =
        R"({"type":"string","pattern":"c(a|b){)" + std::to_string(i) + "}$\"}";
    together += (i > 0 ? "," : "") + pattern;
    apart += (i > 0 ? "," : "") + ("\"" + std::to_string(i) + "\":") + pattern;
  }
  const absl::Status refused = Check(R"({"allOf":[)" + together + "]}");
  EXPECT_EQ(GetErrorDetails(refused).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_THAT(refused.message(), HasSubstr("/allOf/24/pattern"));
  EXPECT_TRUE(Check(R"({"properties":{)" + apart + "}}").ok());

  std::string names;
  for (int i = 0; i < 101; ++i) {
    names += (i > 0 ? ",\"^a" : "\"^a") + std::to_string(i) + "$\":{}";
  }
  EXPECT_EQ(GetErrorDetails(Check(R"({"patternProperties":{)" + names + "}}")).reason,
            "CONSTRAINT_TOO_LARGE");
}

// The library takes such a bound as inclusive.
TEST(JsonSchemaTest, MovesExclusiveBoundsWithAnotherNear) {
  EXPECT_EQ(Changed(R"({"exclusiveMinimum":0,"maximum":0.5})"),
            R"({"minimum":1e-06,"maximum":0.5})");
  EXPECT_EQ(Changed(R"({"minimum":-1.5,"exclusiveMaximum":-1})"),
            R"({"minimum":-1.5,"maximum":-1.000001})");
  EXPECT_EQ(Changed(R"({"exclusiveMinimum":0,"maximum":5})"),
            R"({"exclusiveMinimum":0,"maximum":5})");
  // Above 10^9 they stay where nothing is near.
  for (const char* schema :
       {R"({"exclusiveMinimum":1700000000,"exclusiveMaximum":1700000001})",
        R"({"exclusiveMinimum":1700000000,"anyOf":[{"maximum":1700000002.5},{"maximum":3}]})",
        R"({"type":"integer","exclusiveMinimum":1700000000,"maximum":1700000000.5})"}) {
    EXPECT_EQ(Changed(schema), schema);
  }
}

// The parts that each of these requires lead back to it.
TEST(JsonSchemaTest, RefusesRecursionThatNeverEnds) {
  for (const char* schema : {
           R"({"$ref":"#"})",
           R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#"}},"$ref":"#/$defs/a"})",
           R"({"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}})",
           R"({"type":"array","items":{"$ref":"#"},"minItems":1})",
           R"({"type":"array","prefixItems":[{},{"$ref":"#"}],"minItems":2.0})",
           R"({"type":"array","items":[{"$ref":"#"}],"minItems":1})",
           R"({"type":"object","minProperties":1,"additionalProperties":{"$ref":"#"}})",
           R"({"type":"object","required":["a"],"additionalProperties":{"$ref":"#"}})",
           R"({"$anchor":"me","type":"object","required":["a"],"properties":{"a":{"$ref":"#me"}}})",
           R"({"type":"object","required":["a","b"],
              "properties":{"a":{},"b":{"anyOf":[{"$ref":"#"},{"type":"array","minItems":1,
              "items":{"$ref":"#"}}]}}})",
           R"({"$ref":"#/$defs/a","$defs":{
              "a":{"type":"object","properties":{"b":{"$ref":"#/$defs/b"}},"required":["b"]},
              "b":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}}})",
           R"({"type":"object","required":["a"],"properties":
              {"a":{"type":"object","anyOf":[{"type":"null"},{"$ref":"#"}]}}})",
           R"({"allOf":[{"type":"object"},{"required":["a"],"properties":{"a":{"$ref":"#"}}}]})",
           R"({"type":"object","allOf":[{"properties":{"a":{"$ref":"#"}}},{"required":["a"]}]})",
           R"({"type":"object","required":["a"],"$ref":"#/$defs/b","$defs":{
              "b":{"allOf":[{"properties":{"a":{"$ref":"#"}}}]}}})",
           R"({"type":"object","required":["a"],"allOf":[{"additionalProperties":{"$ref":"#"}}]})",
           R"({"type":"object","additionalProperties":{"$ref":"#"},"allOf":[{"minProperties":1}]})",
           R"({"type":"array","allOf":[{"minItems":2},{"minItems":1},
              {"prefixItems":[{},{"$ref":"#"}]}]})",
           R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/a",
              "definitions":{"a":{"type":["array"],"items":{"$ref":"#","type":"null"},
              "minItems":1}}})",
       }) {
    EXPECT_EQ(GetErrorDetails(Check(schema)).reason, "CONSTRAINT_UNSATISFIABLE") << schema;
  }
}

TEST(JsonSchemaTest, KeepsRecursionThatEnds) {
  for (const char* schema : {
           R"({"type":"object","properties":{"a":{"$ref":"#"}}})",
           R"({"type":"array","items":{"$ref":"#"}})",
           R"({"type":"array","items":{"$ref":"#"},"minItems":0})",
           R"({"type":"object","required":["a"],)"
           R"("properties":{"a":{"anyOf":[{"type":"null"},{"$ref":"#"}]}}})",
           R"({"type":"object","required":["a"],"properties":{"a":{"type":"array",)"
           R"("items":{"$ref":"#"}}}})",
           R"({"type":"object","required":["a"],"patternProperties":{"^b":{"$ref":"#"}}})",
           R"({"type":["object","string"],"minProperties":1,"additionalProperties":{"$ref":"#"},)"
           R"("properties":{"a":{}}})",
           R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}})",
           R"({"type":"object","required":["b"],"allOf":[{"properties":{"a":{"$ref":"#"}}}]})",
           R"({"type":"array","minItems":1,"allOf":[{"prefixItems":[{},{"$ref":"#"}]}]})",
       }) {
    EXPECT_EQ(Changed(schema), schema);
  }
}

TEST(JsonSchemaTest, LeavesOutWhatNeverEnds) {
  EXPECT_EQ(Changed(R"({"properties":{"a":{"$ref":"#/$defs/a"},"b":{}},"required":["b"],)"
                    R"("$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":1}}})"),
            R"({"properties":{"a":false,"b":{}},"required":["b"],"$defs":{"a":false}})");
  EXPECT_EQ(Changed(R"({"anyOf":[{"type":"null"},{"$ref":"#/anyOf/1"}]})"),
            R"({"anyOf":[{"type":"null"},false]})");
  // A string ends it, since no type is asked for.
  EXPECT_EQ(Changed(R"({"required":["a"],"properties":{"a":{"$ref":"#"}}})"),
            R"({"required":["a"],"properties":{"a":{"$ref":"#"}}})");
  EXPECT_EQ(
      Changed(R"({"$defs":{"a":{"required":["a"],"properties":{"a":{"type":"object",)"
              R"("allOf":[{"$ref":"#/$defs/a"}]}}}},"type":["array","null"],"minItems":1,)"
              R"("items":{"allOf":[{"$ref":"#"},{"type":"array"}]}})"),
      R"({"$defs":{"a":{"type":["array","boolean","null","number","string"],"required":["a"],)"
      R"("properties":{"a":false}}},"type":["null"],"minItems":1,"items":false})");
  // A reference whose target has no arrays needs no change.
  EXPECT_EQ(Changed(R"({"type":["object","array"],"properties":{"l":{"$ref":"#"}},"minItems":1,)"
                    R"("items":false})"),
            Changed(R"({"type":["object"],"properties":{"l":{"$ref":"#"}},"minItems":1,)"
                    R"("items":false})"));
  // Split over allOf.
  EXPECT_EQ(Changed(R"({"allOf":[{"properties":{"a":{"$ref":"#","type":"object"}}},)"
                    R"({"required":["a"]}]})"),
            R"({"type":["array","boolean","null","number","string"],)"
            R"("allOf":[{"properties":{"a":false}},{"required":["a"]}]})");
}

TEST(JsonSchemaTest, LeavesOutWhatHasNoEffectBesideAReference) {
  const std::string head = R"({"$schema":"http://json-schema.org/draft-07/schema#",)"
                           R"("$ref":"#/definitions/a","definitions":{"a":{"type":"object",)"
                           R"("properties":{"b":{"$ref":"#/definitions/a")";
  EXPECT_EQ(Changed(head + R"(,"required":["b"],"title":"c"}}}}})"), head + R"(,"title":"c"}}}}})");
}

TEST(JsonSchemaTest, ReferencesPointToSchemas) {
  for (const char* schema : {
           R"({"const":{"required":["a"]},"properties":{"b":{"$ref":"#/const"}}})",
           R"({"items":{"enum":[{"format":"foo"}]},)"
           R"("additionalProperties":{"$ref":"#/items/enum/0"}})",
           R"({"properties":{"const":{"const":{"type":"x"}},)"
           R"("b":{"$ref":"#/properties/const/const"}}})",
       }) {
    EXPECT_EQ(GetErrorDetails(Check(schema)).reason, "CONSTRAINT_UNSUPPORTED") << schema;
  }
  const char* const named = R"({"properties":{"const":{},"enum":{"$ref":"#/properties/const"}}})";
  EXPECT_EQ(Changed(named), named);
}

TEST(JsonSchemaTest, ReadsTheBoundsOfDraft4) {
  EXPECT_EQ(Changed(R"({"minimum":3.5,"exclusiveMinimum":true})"), R"({"exclusiveMinimum":3.5})");
  EXPECT_EQ(Changed(R"({"exclusiveMaximum":true,"maximum":5})"), R"({"exclusiveMaximum":5})");
  EXPECT_EQ(Changed(R"({"minimum":3,"exclusiveMinimum":false})"), R"({"minimum":3})");
  EXPECT_EQ(Changed(R"({"exclusiveMinimum":true,"exclusiveMaximum":false})"), "{}");
  EXPECT_EQ(Changed(R"({"minimum":1,"$ref":"#/$defs/a","exclusiveMinimum":true,"$defs":{"a":{}}})"),
            R"({"minimum":1.000001,"$ref":"#/$defs/a","$defs":{"a":{}}})");
  EXPECT_EQ(Changed(R"({"minimum":0,"exclusiveMinimum":true,"maximum":0.5})"),
            R"({"minimum":1e-06,"maximum":0.5})");
}

TEST(JsonSchemaTest, LeavesTheNarrowerBound) {
  EXPECT_EQ(Changed(R"({"minimum":3,"exclusiveMinimum":3})"), R"({"exclusiveMinimum":3})");
  EXPECT_EQ(Changed(R"({"exclusiveMinimum":2,"minimum":3})"), R"({"minimum":3})");
  EXPECT_EQ(Changed(R"({"maximum":3,"exclusiveMaximum":4})"), R"({"maximum":3})");
  EXPECT_EQ(Changed(R"({"minimum":-1,"exclusiveMinimum":0,"maximum":0.5})"),
            R"({"minimum":1e-06,"maximum":0.5})");
  // Beside a reference that stands alone, nothing was checked.
  EXPECT_EQ(Changed(R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/$defs/a",
                        "$defs":{"a":{}},"minimum":"x","exclusiveMinimum":1})"),
            R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/$defs/a",)"
            R"("$defs":{"a":{}}})");
}

}  // namespace
}  // namespace orcd
