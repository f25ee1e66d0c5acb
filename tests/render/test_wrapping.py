import pytest

from deploykit.render.wrapping import wrapped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three four five six seven", "* one two three four five\n  six seven"),
        ("run `a command of many words here` then", "* run\n  `a command of many words here`\n  then"),
        ("an-unbreakable-name-of-a-node-that-is-long end", "* an-unbreakable-name-of-a-node-that-is-long\n  end"),
        ("node 'a_long_name_of_a_node' (Add)", "* node 'a_long_name_of_a_node'\n  (Add)"),
        ("", "*"),
    ],
)
def test_words_wrap_and_commands_do_not(text, expected):
    assert wrapped(text, 26, first="* ", rest="  ") == expected
