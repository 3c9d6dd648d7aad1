"""Entry script: who wants how much? Reads invoices, and checks that each total is the sum of its lines."""

import xml.etree.ElementTree as ElementTree
from decimal import Decimal

NAMES = {
    "cac": "urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2",
    "cbc": "urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2",
}


def run(mini_batch):
    """Returns one line for each invoice. One that cannot be read raises, and Gristmill finds out which one it was."""
    return [line_of(ElementTree.parse(path).getroot()) for path in mini_batch]


def line_of(invoice):
    number = invoice.findtext("cbc:ID", namespaces=NAMES)
    supplier = invoice.findtext(".//cac:PartyName/cbc:Name", namespaces=NAMES)
    total = invoice.findtext("cac:LegalMonetaryTotal/cbc:PayableAmount", namespaces=NAMES)
    if total is None:
        raise ValueError(f"invoice {number} of {supplier} has no total")
    lines = invoice.findall("cac:InvoiceLine/cbc:LineExtensionAmount", NAMES)
    of_lines = sum(amount(line.text) for line in lines)
    if amount(total) != of_lines:
        raise ValueError(f"invoice {number} of {supplier}: its total is {total}, its lines are {of_lines}")
    return f"{number} {supplier}: {of_lines}"


def amount(text):
    return Decimal(text)
