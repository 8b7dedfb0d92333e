"""What a study's file lists once and crosses: lists, pairs, networks, values, places; mistakes in them."""

from __future__ import annotations

import tomllib

import pytest

from distilcal.errors import InputError
from distilcal.study.templates import expand_templates, merge_tables


def written_out(text, changes=""):
    return expand_templates(tomllib.loads(text), tomllib.loads(changes))


LISTS = """
[each]
network = { bert = { title = "BERT", lr = 1e-5 }, roberta = "RoBERTa" }
loss = ["ls", "focal"]
"""


def test_a_name_in_braces_stands_for_every_entry():
    study = written_out(LISTS + '[stages."{network}-{loss}"]\nlike = "{network}"\n')
    assert list(study["stages"]) == ["bert-ls", "bert-focal", "roberta-ls", "roberta-focal"]  # the first list turns slowest
    assert study["stages"]["roberta-ls"] == {"like": "roberta"}


def test_neighbours_of_one_list_are_repeated_together():
    rows = ["{network.title}", "{network.title} {loss}", "{network.title}!", "end"]
    study = expand_templates({**tomllib.loads(LISTS), "figures": [{"methods": rows}]}, {})
    assert study["figures"][0]["methods"] == [
        "BERT", "BERT ls", "BERT focal", "BERT!", "RoBERTa", "RoBERTa ls", "RoBERTa focal", "RoBERTa!", "end"
    ]  # fmt: skip


def test_a_whole_text_becomes_the_value_itself():
    text = "[each]\nn = { a = { rate = 0.5, sizes = [1, 2] } }\n[values]\nlrs = [1, 2.5]\n"
    study = written_out(
        text + '[stages."{n}"]\nlr = "{n.rate}"\nhidden = "{n.sizes}"\nnote = "at {n.rate}"\ngrid = "{values.lrs}"\n'
    )
    assert study["stages"]["a"] == {"lr": 0.5, "hidden": [1, 2], "note": "at 0.5", "grid": [1, 2.5]}


def test_an_entry_of_a_list_is_repeated_by_its_own_texts_first():
    """A figure whose name has the list is one figure for each entry; otherwise its places are repeated."""
    text = LISTS + '[[figures]]\nname = "{FIRST}"\nplaces = [{ task = "{loss}" }]\n'
    several = written_out(text.replace("{FIRST}", "{loss}"))["figures"]
    assert [(f["name"], f["places"]) for f in several] == [("ls", [{"task": "ls"}]), ("focal", [{"task": "focal"}])]
    one = written_out(text.replace("{FIRST}", "all"))["figures"]
    assert [(f["name"], f["places"]) for f in one] == [("all", [{"task": "ls"}, {"task": "focal"}])]


def test_pairs_of_methods_are_repeated_as_a_whole():
    study = written_out(LISTS + '[[claims]]\npairs = [["{network.title}+x", "{network.title}"]]\n')
    assert study["claims"][0]["pairs"] == [["BERT+x", "BERT"], ["RoBERTa+x", "RoBERTa"]]


NETWORKS = """
[pairs]
cifar = ["Big/Small", "Big/Other"]
[networks]
Big.model.name = "resnet50"
Small = { title = "a small one", model.name = "resnet8", train.lr = 0.01 }
Other.model.name = "vgg8"
[tasks."CIFAR {cifar}"]
pair = "{cifar}"
here.test = "{teacher.title} and {student.title}"
[stages.alone]
network = "{student}"
train = { lr = 0.1, epochs = 3 }
[stages.teacher]
like = "alone"
network = "{teacher}"
[stages.fixed]
network = "Other"
model.augment = false
"""


def test_networks_are_those_of_the_task_s_pair():
    study = written_out(NETWORKS)
    assert study["stages"]["fixed"] == {"model": {"name": "vgg8", "augment": False}}
    assert study["stages"]["alone"] == {"train": {"lr": 0.1, "epochs": 3}}
    small, other = study["tasks"]["CIFAR Big/Small"], study["tasks"]["CIFAR Big/Other"]
    assert small["stages"] == {
        "alone": {"model": {"name": "resnet8"}, "train": {"lr": 0.01}},
        "teacher": {"model": {"name": "resnet50"}},
    }
    assert small["here"] == {"test": "Big and a small one"}
    assert other["stages"]["alone"] == {"model": {"name": "vgg8"}}


def test_a_scale_and_a_task_change_networks():
    scale = '[networks]\nBig.model.name = "resnet20"\n[tasks."CIFAR Big/Small"]\nnetworks.Small.model.name = "resnet14"\n'
    tasks = written_out(NETWORKS, scale)["tasks"]
    assert tasks["CIFAR Big/Small"]["stages"]["alone"]["model"] == {"name": "resnet14"}
    assert {task["stages"]["teacher"]["model"]["name"] for task in tasks.values()} == {"resnet20"}


def test_a_task_changes_the_network_of_stages_that_name_it():
    text = """
    [networks]
    Small.model = { name = "mlp", hidden = [16] }
    [stages.alone]
    network = "Small"
    [stages.taught]
    like = "alone"
    teacher = "alone"
    [tasks.hard]
    networks.Small = { title = "a wider one", model.hidden = [64] }
    stages.alone.train.epochs = 7
    [tasks.easy]
    """
    tasks = written_out(text)["tasks"]
    assert tasks["hard"] == {"stages": {"alone": {"model": {"hidden": [64]}, "train": {"epochs": 7}}}}
    assert tasks["easy"] == {}


def test_places_are_named_and_added_to():
    text = """
    each.set = ["SNLI", "QQP"]
    [places]
    home = [{ set = "{set}" }]
    all = ["home", { set = "MNLI" }]
    [[tables]]
    rows = [{ method = "A", against = "A" }, { method = "B", against = "A" }]
    columns = ["all", { places = "home", scaled = true }]
    """
    table = written_out(text)["tables"][0]
    assert table["rows"] == [{"method": "A"}, {"method": "B", "against": "A"}]  # not compared with itself
    assert table["columns"] == [
        {"set": "SNLI"}, {"set": "QQP"}, {"set": "MNLI"}, {"set": "SNLI", "scaled": True}, {"set": "QQP", "scaled": True}
    ]  # fmt: skip


def test_numbers_as_keys_change_entries_of_a_list():
    terms = {"terms": [{"loss": "kd", "weight": 1}, {"loss": "crd"}]}
    assert merge_tables(terms, {"terms": {"1": {"negatives": 8}}})["terms"] == [
        {"loss": "kd", "weight": 1},
        {"loss": "crd", "negatives": 8},
    ]
    assert merge_tables(terms, {"terms": []}) == {"terms": []}
    assert terms["terms"][1] == {"loss": "crd"}
    with pytest.raises(InputError, match="there is no entry '2' in terms, a list of 2; count entries from 0"):
        merge_tables(terms, {"terms": {"2": {"weight": 1}}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LISTS + '[stages."{netwrk}"]\n', "stages: there is no list 'netwrk'; did you mean network"),
        (LISTS + '[stages.a]\nlike = "{network}"\n', "stages.a.like: {network} is not bound; write {network} in the name"),
        (LISTS + '[stages."{network}"]\nlr = "{network.lrr}"\n', "stages.bert.lr: 'bert' of network has no attribute 'lrr'"),
        (LISTS + '[stages."{network}"]\nlr = "{network.lr}"\n', "'roberta' of network has no attribute 'lr'"),
        ('[values]\nlr = 1\n[stages.a]\nlr = "{values.rl}"\n', "stages.a.lr: there is no value 'rl'; did you mean lr"),
        ('[pairs]\np = ["A-B"]\n', "pairs.p: 'A-B' is not a pair; write \"teacher/student\""),
        ("each.teacher = [1]\n", "each.teacher: the name 'teacher' is taken"),
        ("each.a = 3\n", "each.a = 3, expected a list or a table"),
        ("each = 3\n", "each = 3, expected a table"),
        (NETWORKS.replace('network = "Other"', 'network = "Othr"'), "stages.fixed: there is no network 'Othr'"),
        (NETWORKS.replace("Big/Other", "Big/Othr"), "tasks.CIFAR Big/Othr: there is no network 'Othr'; did you mean Other"),
        (NETWORKS + "[tasks.alone]\n", "tasks.alone has no pair of networks; write pair"),
        (NETWORKS + '[tasks."CIFAR Big/Small".networks.Smal]\n', "there is no network 'Smal'; did you mean Small"),
        ('places.home = []\n[[claims]]\ntext = "x"\nplaces = "hme"\n', "claims 'x': there is no list of places 'hme'"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(text, message):
    with pytest.raises(InputError) as error:
        written_out(text)
    assert message in str(error.value)


def test_a_scale_changes_only_what_there_is():
    with pytest.raises(InputError, match="the scale changes tasks.CIFAR Big/Smal: there is no 'CIFAR Big/Smal'; did you mean"):
        written_out(NETWORKS, '[tasks."CIFAR Big/Smal"]\n')
