"""How an implication is put into words."""

import pytest
from infereval_env.formats import Bearer, Item, PluginBuilder, TemplateBuilder
from infereval_env.wording import conclusion_context, premise_context, strip_tex
from mindscope.errors import MindscopeError


@pytest.fixture
def benchmark(make_benchmark):
    bearers = {
        "b": Bearer(expression="$x$ is red", paraphrases=("red is what $x$ is", "$x$ looks red")),
        "a": Bearer(expression="it costs $5"),
        "c": Bearer(expression="it is $5 or $6"),
    }
    return make_benchmark({"i": "G"}, bearers=bearers)


ITEM = Item(id="i", premises=("b", "a"), conclusions=("c", "b"), analyst_verdicts=("good",))


def test_bearers_come_by_id_and_are_joined(benchmark):
    assert premise_context(benchmark, ITEM) == "it costs $5 and x is red"
    assert conclusion_context(benchmark, ITEM) == "x is red or it is $5 or $6"
    assert premise_context(benchmark, ITEM.model_copy(update={"premises": ()})) == ""


@pytest.mark.parametrize(("variant", "text"), [(1, "red is what x is"), (2, "x looks red"), (3, "x is red")])
def test_a_variant_falls_back_to_the_expression(benchmark, variant, text):
    assert premise_context(benchmark, ITEM, variant=variant) == f"it costs $5 and {text}"


def test_a_benchmarks_own_builder(benchmark):
    builders = benchmark.context_builders.model_copy(
        update={"premise": TemplateBuilder(template="<{expressions}>", joiner="; ")}
    )
    own = benchmark.model_copy(update={"context_builders": builders})
    assert premise_context(own, ITEM) == "<it costs $5; x is red>"


def test_a_builder_that_is_code_is_not_run(benchmark):
    builders = benchmark.context_builders.model_copy(
        update={"premise": PluginBuilder(kind="plugin", plugin="os:system")}
    )
    with pytest.raises(MindscopeError, match="os:system"):
        premise_context(benchmark.model_copy(update={"context_builders": builders}), ITEM)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("$a$ is", "a is"),
        ("$5 and $6", "$5 and $6"),
        ("$a", "$a"),
        ("costs $5", "costs $5"),
        ("from $x_1$ to $y$", "from x_1 to y"),
        ("$ not $ maths", "$ not $ maths"),
    ],
)
def test_prices_are_not_tex(text, plain):
    assert strip_tex(text) == plain
