from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fl.data.datasets import domainnet, office_caltech10
from fl.data.datasets.domainnet import DomainNet
from fl.data.datasets.office_caltech10 import OfficeCaltech10
from fl.data.readers import published_domains

# FedBN's training lists are these long: their fifths and their 32 % are the printed sizes.
LISTED = {
    "clipart": 2103,
    "infograph": 2626,
    "painting": 2472,
    "quickdraw": 4000,
    "real": 4863,
    "sketch": 2213,
}


def lists(training, test):
    return {
        f"{name}_{part}.pkl": (
            [f"set/{name}/{part}/{i}.jpg" for i in range(n)],
            [i % 10 for i in range(n)],
        )
        for part, sizes in (("train", training), ("test", test))
        for name, n in sizes.items()
    }


@pytest.fixture(scope="module")
def all_of_domainnet():
    return lists(LISTED, {name: sizes[2] for name, sizes in domainnet.IMAGES_BY_DOMAIN.items()})


def test_printed_sizes_of_domainnet_come_of_fedfas_share(all_of_domainnet):
    dataset = DomainNet(train_share=0.4)
    samples = published_domains.divide_lists(
        all_of_domainnet, dataset.domains, dataset._count_train_val
    )
    assert samples.counts(dataset.domains) == published_domains.published_counts(
        domainnet.IMAGES_BY_DOMAIN
    )
    assert len(samples.path) == dataset.size == 5847 + 3653 + 4573
    dataset._check_published_sizes(samples, Path("lists.zip"))


def test_without_a_share_nothing_of_domainnet_is_left_out(all_of_domainnet):
    dataset = DomainNet()
    samples = published_domains.divide_lists(
        all_of_domainnet, dataset.domains, dataset._count_train_val
    )
    found = samples.counts(dataset.domains)
    assert [found[f"{name} train"] for name in LISTED] == [n - n // 5 for n in LISTED.values()]
    assert len(samples.path) == sum(LISTED.values()) + 4573
    assert dataset.size == pytest.approx(len(samples.path), abs=20)
    dataset._check_published_sizes(samples, Path("lists.zip"))
    assert replace(dataset, complete=False).size is None


def test_printed_sizes_of_office_come_of_sixty_per_cent():
    training = {
        name: sizes[0] + sizes[1] for name, sizes in office_caltech10.IMAGES_BY_DOMAIN.items()
    }
    test = {name: sizes[2] for name, sizes in office_caltech10.IMAGES_BY_DOMAIN.items()}
    samples = published_domains.divide_lists(
        lists(training, test), tuple(training), office_caltech10._count_train_val
    )
    assert samples.counts(tuple(training)) == published_domains.published_counts(
        office_caltech10.IMAGES_BY_DOMAIN
    )
    assert len(samples.path) == OfficeCaltech10().size == 2533


def test_a_path_that_is_listed_twice_has_two_rows():
    twice = {"a_train.pkl": (["p", "q", "p"], [1, 2, 1]), "a_test.pkl": (["q"], [2])}
    found = published_domains.divide_lists(twice, ("a",), lambda n: (3, 0))
    assert found.rows() == {"p": [0, 2], "q": [1, 3]}
    assert found.rows(domain=1) == {}
