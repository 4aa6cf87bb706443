"""Arbitrary conditions, sensible or not, for property tests."""

from hypothesis import strategies as st

ATOMS = st.sampled_from(
    ["args.a", "args.b", "args", "1", "0", "-1", "1.5", "9223372036854775807", "1u", "'a'", "''",
     "true", "null", "[]", "[1]", "{}", "tool", "labels", "duration('1h')",
     "timestamp('9999-12-31T23:59:59Z')"]
)  # fmt: skip

EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from("+ - * / % == != < <= > >= && || in".split()),  # noqa: SIM905
            inner,
        ),
        st.builds(
            "{}({})".format,
            st.sampled_from(["size", "int", "uint", "double", "string", "!"]),
            inner,
        ),
        st.builds(
            "{}.{}(x, {})".format, inner, st.sampled_from(["all", "exists", "exists_one"]), inner
        ),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)
