"""Writes the data of the example: 2 000 invoices as XML, in the elements of UBL 2.1.

One in 500 is broken, as in life: cut off on the way, an amount with a decimal comma, no total, a total that is not the
sum of its lines. ``python prepare.py --mend`` writes these again, as their senders do when asked, except for the amount
with a comma: its sender sees nothing wrong with it, so the script must learn to read it.
"""

import argparse
import random
from decimal import Decimal
from pathlib import Path

INVOICES = 2000
CUT_OFF, COMMA, NO_TOTAL, WRONG_TOTAL = 317, 842, 1240, 1903
DATA = Path(__file__).resolve().parent / "data" / "invoices"
NAMESPACES = (
    'xmlns="urn:oasis:names:specification:ubl:schema:xsd:Invoice-2" '
    'xmlns:cac="urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2" '
    'xmlns:cbc="urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2"'
)
SUPPLIERS = ("Holm & Sons", "Kettle Yard", "Nordlicht GmbH", "Olive Press", "Tannery Row")
ITEMS = ("paper", "ink", "desk lamp", "chair", "cable", "filter", "gloves", "solvent")


def invoice(number):
    """Returns the text of an invoice."""
    chance = random.Random(number)
    lines = [(chance.choice(ITEMS), Decimal(chance.randrange(100, 90_000)) / 100) for _ in range(chance.randint(1, 6))]
    total = sum(price for _, price in lines)
    body = "\n".join(
        f"  <cac:InvoiceLine><cbc:ID>{position}</cbc:ID>"
        f'<cbc:LineExtensionAmount currencyID="EUR">{price}</cbc:LineExtensionAmount>'
        f"<cac:Item><cbc:Name>{item}</cbc:Name></cac:Item></cac:InvoiceLine>"
        for position, (item, price) in enumerate(lines, start=1)
    )
    supplier = chance.choice(SUPPLIERS).replace("&", "&amp;")
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Invoice {NAMESPACES}>
  <cbc:ID>{number:05}</cbc:ID>
  <cbc:IssueDate>2026-{1 + number % 12:02}-{1 + number % 28:02}</cbc:IssueDate>
  <cac:AccountingSupplierParty><cac:Party><cac:PartyName>
    <cbc:Name>{supplier}</cbc:Name>
  </cac:PartyName></cac:Party></cac:AccountingSupplierParty>
  <cac:LegalMonetaryTotal><cbc:PayableAmount currencyID="EUR">{total}</cbc:PayableAmount></cac:LegalMonetaryTotal>
{body}
</Invoice>
"""


def broken(number, text):
    """Returns the text as it arrived."""
    start, end = text.index("  <cac:LegalMonetaryTotal>"), text.index("</cac:LegalMonetaryTotal>")
    amount = text[text.index('"EUR">', start) + 6 : text.index("</cbc:PayableAmount>")]
    if number == CUT_OFF:
        return text[: len(text) // 2]
    if number == NO_TOTAL:
        return text[:start] + text[end + len("</cac:LegalMonetaryTotal>\n") :]
    if number == WRONG_TOTAL:
        return text.replace(f'"EUR">{amount}</cbc:PayableAmount>', f'"EUR">{Decimal(amount) + 10}</cbc:PayableAmount>')
    return comma(text, amount)


def comma(text, amount):
    return text.replace(f">{amount}<", f">{amount.replace('.', ',')}<")


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--mend", action="store_true", help="write the invoices again that their senders can mend")
mend = parser.parse_args().mend

DATA.mkdir(parents=True, exist_ok=True)
for number in (CUT_OFF, NO_TOTAL, WRONG_TOTAL) if mend else range(INVOICES):
    text = invoice(number)
    if not mend and number in (CUT_OFF, COMMA, NO_TOTAL, WRONG_TOTAL):
        text = broken(number, text)
    (DATA / f"{number:05}.xml").write_text(text, encoding="utf-8")
print(f"{3 if mend else INVOICES} invoices are in {DATA}.")
