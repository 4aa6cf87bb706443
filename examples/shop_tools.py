from ayes import Tools

tools = Tools()


@tools.add()
def send_letter(to: str, text: str) -> str:
    """Send a letter."""
    return f"sent {len(text)} characters to {to}"


@tools.add(repeatable=True)
def find_orders(customer: str) -> list[str]:
    """The customer's open orders."""
    return ["A-17", "A-18"] if customer == "ben" else []
